"""Numbers as option values; a wrong one is refused with what was found and what is expected."""

import math
from collections.abc import Callable

from typer import BadParameter


def at_least(minimum: int) -> Callable[[str], int]:
    """A parser of integers from ``minimum`` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise BadParameter(f"found {text}, expected an integer of at least {minimum}")
        return number

    return parse


def positive(text: str) -> float:
    """A parser of finite numbers above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise BadParameter(f"found {text}, expected a number above 0")
    return number


def one_of(*choices: int) -> Callable[[str], int]:
    """A parser of the integers ``choices``."""
    expected = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"

    def parse(text: str) -> int:
        if str(text) not in map(str, choices):  # click hands in the default as it is
            raise BadParameter(f"found {text}, expected {expected}")
        return int(text)

    return parse


def probability(text: str) -> float:
    """A parser of probabilities below 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise BadParameter(f"found {text}, expected a probability of at least 0 and below 1")
    return number
