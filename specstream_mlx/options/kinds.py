"""What an option may be: in words for a sentence, and as the command line reads it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import MOST, UserError, expected_integer, is_integer, is_number, shown


@dataclass(frozen=True)
class Kind:
    """What values an option may have.

    Attributes:
        objection: what should stand in the place of a value, in words; ``None``: the value will do.
        read: the value of a text, which ``objection`` is then asked about; raises ``ValueError``
            where the text is none. ``None``: the command line goes by the field's type alone.
        metavar: what a help page shows in the place of the value; ``None``: the field's type.
        choices: texts that the value is one of, where it is one of some.
    """

    objection: Callable[[Any], str | None]
    read: Callable[[str], Any] | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Check a value.

        Raises:
            UserError: it will not do; the sentence begins with ``name``.
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
    """A kind of values that ``fits`` tells, called ``words``."""
    return Kind(lambda value: None if fits(value) else words, read, metavar)


def optional(kind: Kind) -> Kind:
    """A kind of values of which there may be none."""
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
    """Some integers."""
    words = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
    return what(words, lambda value: is_integer(value) and value in choices, int, "N")


def choice(*choices: str) -> Kind:
    """Some texts."""
    words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
    return Kind(lambda value: None if value in choices else words, choices=choices)


def instance(words: str, *types: type) -> Kind:
    """Objects of some types."""
    return what(words, lambda value: isinstance(value, types))


def having(words: str, *names: str) -> Kind:
    """Objects with some attributes."""
    return what(words, lambda value: all(hasattr(value, name) for name in names))


def each(words: str, fits: Callable[[Any], bool]) -> Kind:
    """Lists and tuples of what ``fits`` tells."""
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
PATH = instance("a path", str, Path)
FIELDS = instance("fields by name", dict)
POSITIVE = what("a number above 0", lambda value: is_number(value) and value > 0, float, "X")
SHARE = replace(number(0, 1), metavar="P")
PROBABILITY = what(
    "a probability of at least 0 and below 1",
    lambda value: is_number(value) and 0 <= value < 1,
    float,
    "P",
)
