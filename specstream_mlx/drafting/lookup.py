"""Prompt lookup: n-grams of prompt and text guess what comes next, and how sure that is."""

import math
from collections.abc import Sequence

from .best_first import Path
from .ngram_index import NGramIndex

ALTERNATIVES = 2
"""Continuations of one n-gram that are told apart; a third is hardly ever right."""

_PRIORS = ((0.0, 0.0), (0.4, 0.07), (0.65, 0.03), (0.75, 0.01), (0.8, 0.005))
"""Acceptance by length of the n-gram and rank, in the demonstration tasks' training text."""

_PRIOR_WEIGHT = 4
_LONGEST_MEMORY = 64
_LEAST_RATE = 1e-9
_MOST_TOGETHER = 0.99


class Lookup:
    """The n-grams of one generation, and how often their continuations were right in it.

    Each generated token tells whether the index would have foreseen it, drafted or not. So the
    probability of a continuation is a running average over the tokens so far, for each length of
    the n-gram and each rank among its continuations. A node's joint probability is the product
    along its path: the n-gram grows with the path, so behind a long match it falls slowly.

    Args:
        prompt: token ids; they are read, not learned from.
        longest: tokens of the longest n-gram.
    """

    def __init__(self, prompt: Sequence[int], longest: int):
        self._index = NGramIndex(longest, ALTERNATIVES)
        self._index.extend(prompt)
        self._rates = [[_prior(length, r) for r in range(ALTERNATIVES)] for length in _to(longest)]
        self._weights = [[_PRIOR_WEIGHT] * ALTERNATIVES for _ in _to(longest)]

    def accept(self, tokens: Sequence[int]) -> None:
        """Learn from ``tokens``, which the target has generated, and append them to the text."""
        for token in tokens:
            length, guesses = self._index.following()
            rates, weights = self._rates[length], self._weights[length]
            for rank, guess in enumerate(guesses):
                rates[rank] += ((guess == token) - rates[rank]) / (weights[rank] + 1)
                # A bounded weight lets the average follow a text that changes.
                weights[rank] = min(weights[rank] + 1, _LONGEST_MEMORY)
            self._index.extend((token,))

    def children(self, path: Path) -> list[tuple[int, float]]:
        """(token, log-probability) of what the n-grams expect after the text and ``path``.

        The probabilities sum to less than 1.
        """
        length, guesses = self._index.following(path)
        # A rate that is always wrong underflows in the end.
        rates = [max(rate, _LEAST_RATE) for rate in self._rates[length][: len(guesses)]]
        # At most one is right, but the averages of the ranks are taken over different tokens.
        scale = min(1.0, _MOST_TOGETHER / sum(rates)) if rates else 1.0
        return [(token, math.log(rate * scale)) for token, rate in zip(guesses, rates, strict=True)]


def _to(longest: int) -> range:
    return range(longest + 1)


def _prior(length: int, rank: int) -> float:
    """Acceptance before anything is known."""
    return _PRIORS[min(length, len(_PRIORS) - 1)][rank]
