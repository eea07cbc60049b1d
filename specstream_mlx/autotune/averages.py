"""How often the streams have been right in this text, over how often they thought they would be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..drafting.best_first import Guesses

_START = 0.8
_WEIGHT = 8.0
_MEMORY = 16.0
_MOST, _MOST_TOGETHER, _LEAST = 0.99, 0.995, 1e-9


@dataclass
class _Guessed:
    """Guesses that the text has not passed yet.

    Attributes:
        tokens: by depth and rank.
        probabilities: by depth and rank.
        depth: that the next token is at, from 0 on.
        trunk: whether all tokens so far were the first guesses of their depths.
    """

    tokens: list[list[int]]
    probabilities: list[list[float]]
    depth: int = 0
    trunk: bool = True


class StreamAverages:
    """Corrects the streams' probabilities by what has come of them in one text.

    Streams are sure of themselves on text like that they were trained on, and nearly as sure on any
    other. So a probability is multiplied by hits over expected hits, of four kinds: the first guess
    of a depth or another one, behind first guesses only (the trunk) or elsewhere.

    A guess is judged once the text has passed it, drafted or not, if every token before it was
    among the candidates of its depth: deeper nodes are drafted in no other case.

    Attributes:
        hits, expected: by [trunk, elsewhere] and [first guess, another].
    """

    def __init__(self) -> None:
        self.hits = [[_START * _WEIGHT] * 2 for _ in range(2)]
        self.expected = [[_WEIGHT] * 2 for _ in range(2)]
        self._pending: list[_Guessed] = []
        self._newest = _Guessed([], [])
        self._levels: dict[tuple[int, bool], Guesses] = {}

    def take(self, candidates: np.ndarray, log_probs: np.ndarray) -> None:
        """Take the guesses of a step, which the tokens to come will judge.

        Args:
            candidates: (gamma, k) token ids, best first; gamma is 0 where no streams ran.
            log_probs: (gamma, k) their log-probabilities in nats, as the streams see them.
        """
        self._newest = _Guessed(candidates.tolist(), np.exp(log_probs).tolist())
        self._levels.clear()
        if self._newest.tokens:
            self._pending.append(self._newest)

    @property
    def depth(self) -> int:
        """gamma of the guesses taken last."""
        return len(self._newest.tokens)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The trunk: the first guess of each depth."""
        return tuple(row[0] for row in self._newest.tokens)

    def level(self, depth: int, trunk: bool) -> Guesses:
        """The guesses taken last for one depth, from 0 on, with corrected log-probabilities.

        Args:
            depth: below ``depth``.
            trunk: whether they are asked for behind first guesses only.
        """
        if (depth, trunk) not in self._levels:
            self._levels[depth, trunk] = self._corrected(depth, 0 if trunk else 1)
        return self._levels[depth, trunk]

    def accept(self, tokens: Sequence[int]) -> None:
        """Judge the guesses by the tokens that were written, the newest last."""
        for token in tokens:
            self._pending = [guessed for guessed in self._pending if self._judge(guessed, token)]

    def factor(self, place: int, rank: int) -> float:
        """What the probability of a guess of this rank is multiplied by, at [trunk, elsewhere]."""
        kind = min(rank, 1)
        return self.hits[place][kind] / self.expected[place][kind]

    def _corrected(self, depth: int, place: int) -> Guesses:
        first, other = self.factor(place, 0), self.factor(place, 1)
        first_one, *others = self._newest.probabilities[depth]
        found = [min(_MOST, first_one * first), *(min(_MOST, p * other) for p in others)]
        scale = min(1.0, _MOST_TOGETHER / max(sum(found), _LEAST))
        tokens = self._newest.tokens[depth]
        return [
            (token, math.log(max(probability * scale, _LEAST)))
            for token, probability in zip(tokens, found, strict=True)
        ]

    def _judge(self, guessed: _Guessed, token: int) -> bool:
        """Count the guesses for this token; returns whether deeper ones may still be reached."""
        tokens = guessed.tokens[guessed.depth]
        hits, expected = (table[0 if guessed.trunk else 1] for table in (self.hits, self.expected))
        for rank, probability in enumerate(guessed.probabilities[guessed.depth]):
            kind = min(rank, 1)
            hits[kind] += tokens[rank] == token
            expected[kind] += probability
        for kind in range(2):
            if expected[kind] > _MEMORY:
                hits[kind] *= _MEMORY / expected[kind]
                expected[kind] = _MEMORY
        guessed.trunk = guessed.trunk and tokens[0] == token
        guessed.depth += 1
        return token in tokens and guessed.depth < len(guessed.tokens)
