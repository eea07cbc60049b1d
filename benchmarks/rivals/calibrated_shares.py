"""Shares of what followed elsewhere, corrected by how often such shares were right in a text."""

import math
from collections.abc import Hashable, Sequence

from specstream_mlx.drafting.calibration import LOOKUP_MEMORY, MOST, MOST_TOGETHER, START, WEIGHT
from specstream_mlx.engine.guess import Guesses

Shares = Sequence[tuple[int, float]]
"""Tokens, with their shares of all that was seen in that place."""

_LEAST = 1e-9


class HitShares:
    """Hits of guesses over the hits that their shares promised, by the kind of the guess."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, float]] = {}  # hits, and how many were expected

    def corrected(self, kind: Hashable, shares: Shares) -> Guesses:
        hits, expected = self._known.get(kind, (0.0, 0.0))
        factor = (hits + START * WEIGHT) / (expected + WEIGHT)
        certain = [min(MOST, share * factor) for _, share in shares]
        scale = min(1.0, MOST_TOGETHER / max(sum(certain), _LEAST))
        return [
            (token, math.log(max(likely * scale, _LEAST)))
            for (token, _), likely in zip(shares, certain, strict=True)
        ]

    def judge(self, kind: Hashable, shares: Shares, token: int) -> None:
        """Take in the token that came where these shares were expected."""
        hits, expected = self._known.get(kind, (0.0, 0.0))
        hits += sum(guess == token for guess, _ in shares)
        expected += sum(share for _, share in shares)
        remembered = min(1.0, LOOKUP_MEMORY / max(expected, _LEAST))
        self._known[kind] = hits * remembered, expected * remembered
