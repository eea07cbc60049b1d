"""Notes of a command beside its result, on stderr."""

import sys


def note(sentence: str) -> None:
    """Print a note, one line."""
    print(sentence, file=sys.stderr)
