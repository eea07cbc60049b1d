"""Parsers of option values, which refuse a wrong value with what was found and what is expected.

Click may hand a parser a default that is parsed already.
"""

import math
from collections.abc import Callable

from typer import BadParameter

from ..checked_files import parse_json
from ..config import MOST, is_number

_LONGEST_PART = 100  # bytes; file systems take names of 255


def at_least(minimum: int) -> Callable[[str], int]:
    """A parser of integers from ``minimum`` on, to what 32 bits hold."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise BadParameter(f"found {_cut(text)}, expected an integer of at least {minimum}")
        if number > MOST:
            raise BadParameter(f"found {_cut(text)}, expected an integer of at most {MOST}")
        return number

    return parse


def _cut(text: str) -> str:
    """What the user typed, as far as it fits a sentence."""
    text = str(text)
    return text if len(text) <= 80 else f"{text[:80]} .."


def between(least: int, most: int) -> Callable[[str], int]:
    """A parser of integers from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise BadParameter(f"found {_cut(text)}, expected an integer from {least} to {most}")
        return number

    return parse


def one_of(*choices: int) -> Callable[[str], int]:
    """A parser of the integers ``choices``."""
    expected = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"

    def parse(text: str) -> int:
        if str(text) not in map(str, choices):
            raise BadParameter(f"found {_cut(text)}, expected {expected}")
        return int(text)

    return parse


def part_of_name(text: str) -> str:
    """Parse what goes into the name of a file, so that it leaves its directory no more."""
    if "/" in text or "\0" in text or len(text.encode(errors="surrogateescape")) > _LONGEST_PART:
        raise BadParameter(
            f"found {_cut(text)}, expected a part of a file's name, without a slash and of at most "
            f"{_LONGEST_PART} bytes"
        )
    return text


def utf8(text: str) -> str:
    """Parse a text, which the command line may hold bytes of that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadParameter(f"found {_cut(repr(text))}, expected UTF-8 text") from None
    return text


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise BadParameter(f"found {_cut(text)}, expected a number above 0")
    return number


def probability(text: str) -> float:
    """Parse a probability below 1."""
    number = _number(text)
    if not 0 <= number < 1:
        raise BadParameter(f"found {_cut(text)}, expected a probability of at least 0 and below 1")
    return number


def _number(text: str) -> float:
    """The number that ``text`` is; NaN, which is in no range, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def token_bias(text: str) -> dict[int, float]:
    """Parse a JSON object from token ids to numbers."""
    if isinstance(text, dict):
        return text
    try:
        found = {int(token): value for token, value in parse_json(text, "it").items()}
        if all(is_number(value) for value in found.values()):
            return found
    except (ValueError, AttributeError):
        pass
    raise BadParameter(
        f'found {_cut(text)}, expected a JSON object from token ids to numbers, such as {{"5": -2}}'
    )
