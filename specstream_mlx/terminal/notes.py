"""Notes of a command, on stderr."""

import shutil
import sys
from textwrap import TextWrapper


def note(sentence: str) -> None:
    """Print a note; at a terminal its words wrap."""
    print(wrapped(sentence), file=sys.stderr)


def wrapped(text: str) -> str:
    """Break lines that are too long for the terminal between words, if stderr is one."""
    if not sys.stderr.isatty():
        return text
    lines = TextWrapper(
        shutil.get_terminal_size().columns,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(lines.fill, text.split("\n")))
