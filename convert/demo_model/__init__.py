"""The making of the bundled demonstration model: its text, its tokenizer and its training.

It runs in a clone of the repository, installed with ``pip install -e``; the wheel is without it.
"""
