"""How often a drafter's guesses of one kind have been right in a text."""

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ..engine.guesses import Guesses
from . import constants

Kind = TypeVar("Kind")

_LEAST = 1e-9


class HitRates(Generic[Kind]):
    """Running averages of how often guesses were right, by their kind.

    Args:
        prior: function that returns a kind's rate at the beginning of a text.
    """

    def __init__(self, prior: Callable[[Kind], float]):
        self._prior = prior
        self._known: dict[Kind, tuple[float, int]] = {}  # rate, and the guesses that it counts as

    def __getitem__(self, kind: Kind) -> float:
        """Return a kind's rate, above 0: one that is always wrong underflows in the end."""
        return max(self._known.get(kind, (self._prior(kind), 0))[0], _LEAST)

    def judge(self, kind: Kind, right: bool) -> None:
        """Take in whether a guess was right."""
        rate, weight = self._known.get(kind, (self._prior(kind), constants.PRIOR_WEIGHT))
        # A bounded weight lets the average follow a text that changes.
        more = min(weight + 1, constants.LOOKUP_MEMORY)
        self._known[kind] = rate + (right - rate) / (weight + 1), more


Shares = Sequence[tuple[int, float]]
"""Tokens, with their shares of all that a drafter has seen in that place."""


class HitShares(Generic[Kind]):
    """Corrections of shares by hits over expected hits, by the kind of the guess.

    What was common elsewhere is not as common here.
    """

    def __init__(self) -> None:
        self._known: dict[Kind, tuple[float, float]] = {}  # hits, and how many were expected

    def corrected(self, kind: Kind, shares: Shares) -> Guesses:
        """Turn shares into guesses."""
        hits, expected = self._known.get(kind, (0.0, 0.0))
        factor = (hits + constants.START * constants.WEIGHT) / (expected + constants.WEIGHT)
        certain = [min(constants.MOST, share * factor) for _, share in shares]
        scale = min(1.0, constants.MOST_TOGETHER / max(sum(certain), _LEAST))
        return [
            (token, math.log(max(one * scale, _LEAST)))
            for (token, _), one in zip(shares, certain, strict=True)
        ]

    def judge(self, kind: Kind, shares: Shares, token: int) -> None:
        """Take in the token that came where these shares were expected."""
        hits, expected = self._known.get(kind, (0.0, 0.0))
        hits += sum(guess == token for guess, _ in shares)
        expected += sum(share for _, share in shares)
        kept = min(1.0, constants.LOOKUP_MEMORY / max(expected, _LEAST))
        self._known[kind] = hits * kept, expected * kept
