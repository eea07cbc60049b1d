"""How often a drafter's guesses of one kind have been right in a text."""

from collections.abc import Callable
from typing import Generic, TypeVar

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
