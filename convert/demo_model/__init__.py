"""The making of the bundled streams and adapters: their text and their training.

It runs in a clone of the repository, installed with ``pip install -e``; the wheel is without it.
"""
