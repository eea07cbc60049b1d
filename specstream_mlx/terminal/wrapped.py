"""Text that comes in pieces, wrapped between words at a terminal's edge."""

import re
import shutil

from rich.cells import cell_len

_WIDE = r"\u2e80-\ud7ff\uf900-\uffef\U00010000-\U0003ffff"  # may stand at any side of an edge
_PIECES = re.compile(rf"\n|[^\S\n]+|[{_WIDE}]|[^\s{_WIDE}]+")


class Wrapped:
    """Prints a text in whole words."""

    def __init__(self) -> None:
        self._width, self._column, self._word = shutil.get_terminal_size().columns - 1, 0, ""

    def write(self, text: str) -> None:
        """Print a piece of the text except its last word, which may continue."""
        for piece in _PIECES.findall(text):
            blank = piece.isspace()
            if blank or cell_len(piece) > len(piece) or cell_len(self._word) > len(self._word):
                self.flush()
            if not blank:
                self._word += piece
            elif piece == "\n":
                print(flush=True)
                self._column = 0
            else:
                room = self._width - self._column
                print(piece[:room], end="")
                self._column += min(room, len(piece))

    def flush(self) -> None:
        """Print the last word."""
        size = cell_len(self._word)
        if self._column and self._column + size > self._width:
            print()
            self._column = 0
        print(self._word, end="", flush=True)
        self._column, self._word = min(self._column + size, self._width), ""
