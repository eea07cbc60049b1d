"""Kinds of option values: checked, named in a sentence, read from the command line."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import MOST, UserError, expected_integer, is_integer, is_number, shown

LONGEST_PART = 100
"""Bytes of a part of a name; file systems take names of 255."""


@dataclass(frozen=True)
class Kind:
    """A kind of values that an option may have.

    Attributes:
        objection: function that names what was expected instead of a value; ``None`` for
            a right one.
        read: function that reads a value from a text, before ``objection`` checks it; raises
            ``ValueError`` if it cannot. ``None``: the field's type reads it.
        metavar: name of the value on a help page; ``None``: the field's type.
        choices: the texts to choose from, if the value is one of some.
    """

    objection: Callable[[Any], str | None]
    read: Callable[[str], Any] | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Check a value.

        Raises:
            UserError: the value is of another kind; the sentence begins with ``name``.
        """
        expected = self.objection(value)
        if expected is not None:
            raise UserError(f"{name} is {shown(value)}, expected {expected}")


def what(
    words: str,
    fits: Callable[[Any], bool],
    read: Callable[[str], Any] | None = None,
    metavar: str | None = None,
) -> Kind:
    """Make the kind of values for which ``fits`` is true, called ``words``."""
    return Kind(lambda value: None if fits(value) else words, read, metavar)


def optional(kind: Kind) -> Kind:
    """Make a kind that allows ``None`` too."""
    return replace(kind, objection=lambda value: None if value is None else kind.objection(value))


def integer(least: int, most: int = MOST) -> Kind:
    """Integers, of Python's or numpy's, from ``least`` to ``most``."""

    return Kind(lambda value: expected_integer(value, least, most), int, "N")


def number(least: float = -math.inf, most: float = math.inf) -> Kind:
    """Finite numbers from ``least`` to ``most``."""
    words = "a number"
    if least > -math.inf:
        words = f"a number of at least {least}" if most == math.inf else f"a number from {least}"
    if most < math.inf:
        words += f" to {most}"
    return what(words, lambda value: is_number(value) and least <= value <= most, float, "X")


def one_of(*choices: int) -> Kind:
    """Integers out of a few."""
    words = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
    return what(words, lambda value: is_integer(value) and value in choices, int, "N")


def choice(*choices: str) -> Kind:
    """Texts out of a few."""
    *others, last = map(repr, choices)
    words = f"{', '.join(others)} or {last}" if others else last
    return Kind(lambda value: None if value in choices else words, choices=choices)


def instance(words: str, *types: type) -> Kind:
    """Objects of some types."""
    return what(words, lambda value: isinstance(value, types))


def having(words: str, *names: str) -> Kind:
    """Objects with some attributes."""
    return what(words, lambda value: all(hasattr(value, name) for name in names))


def each(words: str, fits: Callable[[Any], bool]) -> Kind:
    """Lists and tuples of elements for which ``fits`` is true."""
    return what(words, lambda value: isinstance(value, list | tuple) and all(map(fits, value)))


FLAG = what("True or False", lambda value: isinstance(value, int) and value in (0, 1))
TEXT = instance("a text", str)
TEXTS = what(
    "a string or a list of strings",
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list | tuple) and all(isinstance(part, str) for part in value))
    ),
)
PATH = what(  # pathlib takes an empty text for the working directory
    "a path",
    lambda value: isinstance(value, Path) or (isinstance(value, str) and bool(value.strip())),
    lambda text: Path(text) if text.strip() else text,
)
FIELDS = instance("fields by name", dict)
PART_OF_NAME = what(
    f"a part of a file's name, without a slash and of at most {LONGEST_PART} bytes",
    lambda value: (
        isinstance(value, str)
        and not set(value) & {"/", "\0"}
        and len(value.encode(errors="surrogateescape")) <= LONGEST_PART
    ),
    str,
)
POSITIVE = what("a number above 0", lambda value: is_number(value) and value > 0, float, "X")
SHARE = replace(number(0, 1), metavar="P")
PROBABILITY = what(
    "a probability of at least 0 and below 1",
    lambda value: is_number(value) and 0 <= value < 1,
    float,
    "P",
)
