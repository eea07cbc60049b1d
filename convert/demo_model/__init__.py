"""The making of the bundled streams and adapters: their text and their training.

It runs in a clone that ``bash setup.sh`` has set up; the wheel is without it.
"""
