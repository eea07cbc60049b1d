"""Notes of a command, on stderr."""

import shutil
import sys
from textwrap import TextWrapper


def note(sentence: str) -> None:
    """Print a note; at a terminal its words wrap."""
    print(fitted(sentence) if sys.stderr.isatty() else sentence, file=sys.stderr)


def fitted(text: str, paragraphs: bool = False) -> str:
    """Break lines that are too long for the terminal between words; ``paragraphs``: fill these."""
    width = shutil.get_terminal_size().columns
    parts = []
    for part in text.split("\n\n"):
        lines = part.split("\n")
        if max(map(len, lines)) > width and paragraphs and not part.startswith(" "):
            lines = [" ".join(lines)]
        for number, line in enumerate(lines):
            indent = line[: len(line) - len(line.lstrip())]
            wrapper = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
            wrapper.subsequent_indent = indent
            lines[number] = wrapper.fill(line)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
