"""Notes: what a command says beside its result, on stderr."""

import sys


def note(sentence: str) -> None:
    """Print one line about what is going on."""
    print(sentence, file=sys.stderr)
