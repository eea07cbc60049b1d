"""Notes of a command, on stderr."""

import sys


def note(sentence: str) -> None:
    """Print a note, one line."""
    print(sentence, file=sys.stderr)
