"""Prompt lookup decoding as its authors have it: one run, from the earliest match.

After https://github.com/apoorvumang/prompt-lookup-decoding, whose defaults Spec-Bench takes: the
longest n-gram of at most 3 tokens at the text's end that occurs earlier, there the first occurrence
with 10 tokens after it, which are the draft. ``lookup`` differs in that it takes the newest match,
looks again after every node, and proposes two tokens.
"""

import math
from collections.abc import Sequence

from specstream_mlx.drafting.calibration import MOST, HitRates
from specstream_mlx.drafting.ngram import PRIORS
from specstream_mlx.drafting.proposer import Material, Proposer
from specstream_mlx.engine.guess import Guesses, Path

_LONGEST, _RUN = 3, 10


class PromptLookup(Proposer):
    """The run of tokens after the earliest match of the text's end.

    The draft is the papers'. So that the rule may draft a part of it, each token has a probability:
    how often runs after n-grams of that length have begun rightly in this text. A token of the run
    makes its n-gram longer.
    """

    def __init__(self, material: Material):
        self._text: list[int] = []
        self._first: dict[tuple[int, ...], int] = {}  # place after an n-gram's first occurrence
        self._rates = HitRates(lambda length: PRIORS[length])
        self._read(material.prompt)
        self._length, self._run = self._find()

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens; each judges the run that was proposed before it."""
        for token in tokens:
            if self._run:
                self._rates.judge(self._length, self._run[0] == token)
            self._read((token,))
            self._length, self._run = self._find()

    def children(self, path: Path) -> Guesses:
        """Guess the run's next token, where ``path`` has followed it."""
        depth = len(path)
        if depth >= len(self._run) or path != self._run[:depth]:
            return []
        rate = self._rates[min(self._length + depth, _LONGEST)]
        return [(self._run[depth], math.log(min(rate, MOST)))]

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text.append(token)
            end = len(self._text)
            for length in range(1, min(_LONGEST, end) + 1):
                self._first.setdefault(tuple(self._text[end - length :]), end)

    def _find(self) -> tuple[int, Path]:
        """Return the longest n-gram's length with a whole run, and the run; (0, ()): none."""
        end = len(self._text)
        for length in range(min(_LONGEST, end), 0, -1):
            start = self._first[tuple(self._text[end - length :])]
            if start + _RUN <= end:
                return length, tuple(self._text[start : start + _RUN])
        return 0, ()
