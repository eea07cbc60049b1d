"""Prompt lookup: propose what followed the newest n-gram earlier in the text, and how surely."""

import math
from collections.abc import Iterable, Sequence

from ..engine.guess import Guesses, Path
from .calibration import HitRates
from .proposer import Material, Proposer

# Acceptance of the newest continuation at the beginning of a text, by length of the n-gram, 0 to 4
# (studied), and of the one before it, for n-grams of any length.
PRIORS = (0.0, 0.3, 0.5, 0.65, 0.75)
SECOND_PRIOR = 0.05
_MOST_TOGETHER = 0.99


class NGramIndex:
    """All n-grams of a sequence of up to ``longest`` tokens, with what came after them."""

    def __init__(self, longest: int, alternatives: int):
        self._longest, self._alternatives = longest, alternatives
        self._tail: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ``tokens`` to the text."""
        for token in tokens:
            tail = self._tail
            for start in range(len(tail)):
                ngram = tail[start:]
                others = (other for other in self._followers.get(ngram, ()) if other != token)
                self._followers[ngram] = (token, *others)[: self._alternatives]
            self._tail = (*tail, token)[-self._longest :]

    def following(self, path: Sequence[int] = ()) -> tuple[int, tuple[int, ...]]:
        """Look up what may follow ``path``, by the longest n-gram that has followers.

        Returns its length, 0 if there is none, and the different followers, the most recent first.
        """
        tail = (*self._tail, *path)[-self._longest :]
        for start in range(len(tail)):
            followers = self._followers.get(tail[start:])
            if followers:
                return len(tail) - start, followers
        return 0, ()


class Lookup(Proposer):
    """The n-grams of one sequence, and the shares of their continuations that were right in it.

    A continuation's probability is a running average for each length of the n-gram and each rank.
    The n-gram grows with the path, so after a long match the joint probability falls slowly.
    """

    def __init__(self, material: Material, longest: int = 4, depth: int = 10):
        self._depth = depth
        self._index = NGramIndex(longest, alternatives=2)  # a third is hardly ever right
        self._index.extend(material.prompt)
        self._rates = HitRates(_prior)
        self.right = self.judged = 0  # first guesses for the next token

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            length, guesses = self._index.following()
            if guesses:
                self.right, self.judged = self.right + (guesses[0] == token), self.judged + 1
            for rank, guess in enumerate(guesses):
                self._rates.judge((length, rank), guess == token)
            self._index.extend((token,))

    def children(self, path: Path) -> Guesses:
        if len(path) >= self._depth:
            return []
        length, guesses = self._index.following(path)
        rates = [self._rates[length, rank] for rank in range(len(guesses))]
        # At most one is right, but the averages of the ranks are taken over different tokens.
        scale = min(1.0, _MOST_TOGETHER / sum(rates)) if rates else 1.0
        return [(token, math.log(rate * scale)) for token, rate in zip(guesses, rates, strict=True)]


def _prior(kind: tuple[int, int]) -> float:
    """Return the rate, at the beginning of a text, of a length of the n-gram and a rank."""
    length, rank = kind
    return SECOND_PRIOR if rank else PRIORS[min(length, len(PRIORS) - 1)]
