"""Numbers, exchanged for others of their pattern in the same order."""

import random
import string
from collections.abc import Collection, Iterable

YEARS = range(1900, 2040)
_NEAR = 0.7  # of the whole numbers stay between half and twice the value
_TRIES = 20


def _like(number: str, largest: int | None, rng: random.Random) -> str:
    """Another number of the same pattern, not larger than ``largest``.

    Digits behind the point and zeros at the end stay zeros, nines nines and fives fives, so that
    14.99 stays a price and 340 a round number.
    """
    if largest is not None:
        return str(rng.randint(2, largest))
    if number.isdigit() and int(number) in YEARS:
        return str(min(max(int(number) + rng.randint(-14, 12), YEARS[0]), YEARS[-1]))
    if number.isdigit() and len(number) == 1:
        return str(rng.randint(2, 9))
    if number.isdigit() and rng.random() < _NEAR:
        step = 10 ** len(number) - len(number.rstrip("0"))
        near = rng.randint(int(number) // 2, 2 * int(number)) // step * step
        near -= near % 5 if number[-1] == "5" and rng.random() < 0.8 else 0
        if len(str(near)) == len(number):
            return str(near)
    whole, point, part = number.partition(".")
    ending = whole[1 + len(whole[1:].rstrip("059")) :]
    year = number.isdigit() and len(number) == 4 and whole[0] == "1"
    made = whole[0] if whole[0] == "0" or year else rng.choice("123456789")
    made += "".join(rng.choices(string.digits, k=len(whole) - len(ending) - 1))
    for digit in ending + part:
        keeps = digit in "059" and rng.random() < 0.8
        made += digit if keeps else rng.choice(string.digits)
    return made[: len(whole)] + point + made[len(whole) :]


def value(number: str) -> float:
    """The number that digits and a point stand for."""
    return float(number)


def _shape(number: str) -> tuple[int, bool]:
    return len(number.partition(".")[0]), "." in number


def others(
    numbers: dict[str, int | None], fixed: Collection[str], rng: random.Random
) -> dict[str, str]:
    """Other numbers for ``numbers``, in the same order, all different; {} if none were found.

    Args:
        numbers: each with the largest value that may stand in its place, ``None`` if any may.
        fixed: numbers that stand beside them and stay.
    """
    taken = {value(number) for number in fixed}
    for _ in range(_TRIES):
        new: dict[str, str] = {}
        for shape in sorted({_shape(number) for number in numbers}):
            group = sorted((n for n in numbers if _shape(n) == shape), key=value)
            made = sorted((_like(n, numbers[n], rng) for n in group), key=value)
            new.update(zip(group, made, strict=True))
        values = {value(number) for number in new.values()}
        fits = all(most is None or 2 <= value(new[old]) <= most for old, most in numbers.items())
        ordered = [value(new[number]) for number in sorted(numbers, key=value)]
        if fits and ordered == sorted(ordered) and len(values) == len(new) and not values & taken:
            return new
    return {}


def add_up(numbers: Iterable[str], others: Iterable[int] = ()) -> bool:
    """Tell whether some of the numbers are a sum, a product or the double of others.

    Args:
        numbers: digits, without commas.
        others: numbers in words beside them, that may be a part of a sum or a product.
    """
    found = {value(number) for number in numbers} - {0.0, 1.0}
    if any(2 * one in found for one in found):
        return True
    parts = sorted(found | {float(other) for other in others} - {0.0, 1.0})
    return any(
        (one + other in found or one * other in found) and (one in found or other in found)
        for at, one in enumerate(parts)
        for other in parts[at + 1 :]
    )
