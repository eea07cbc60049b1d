"""Lookahead decoding: the target's own Jacobi iterations, beside its text, are the drafts.

Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding (arXiv
2402.02057). A window of W columns and N - 1 levels goes through every step: level 0 are guesses
for the next W - 1 tokens, each further level what the target said to the level before it, one place
on. A column of it is an n-gram that the target itself might write, and goes into a pool by the
token before it. The window needs no attention of its own: it is a draft tree, level 0 a chain below
the root, and each column a chain below its place in level 0.
"""

import math
import random
from collections.abc import Sequence

from specstream_mlx.drafting.calibration import MOST, MOST_TOGETHER, Backoff, HitRates
from specstream_mlx.drafting.proposer import Material, Price, Proposer
from specstream_mlx.engine.guess import Guesses, Path
from specstream_mlx.engine.plan import Verified

_FIRST, _FURTHER, _OTHER = 0.2, 0.5, 0.05  # rates at the beginning of a text
_PATIENCE = 8  # rounds of a full window before it is judged


class Lookahead(Proposer):
    """The window of W ``columns`` and the pool of n-grams, ``most`` after a token, of one text.

    The authors' W and N, 5 and 7, add 29 rows to every step.
    """

    def __init__(self, material: Material, columns: int = 5, ngram: int = 3, most: int = 5):
        self._columns, self._ngram, self._most = columns, ngram, most
        self._random = random.Random(len(material.prompt))
        self._prompt, self._root = material.prompt, material.prompt[-1]
        self._newest = self._root
        self._levels = [self._any(self._columns - 1)]
        self._pool: dict[int, list[Path]] = {}
        self._rates = HitRates(_prior)
        self._backoff, self._rounds, self._placed = Backoff(), 0, False

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens, and judge the n-grams after the root by them."""
        path: Path = ()
        for token in tokens:
            guesses = self._following(path)
            for rank, guess in enumerate(guesses):
                self._rates.judge((min(len(path), 1), min(rank, 1)), guess == token)
            if token not in guesses:
                break
            path = (*path, token)
        if self._rounds > _PATIENCE:
            self._backoff.note(len(path))
        self._newest = tokens[-1]

    def begin(self, verified: Verified, price: Price) -> None:
        """Move the window on by what the target said after it."""
        if self._placed:
            self._move(verified)
        self._root = self._newest
        cost = price.row * sum(map(len, self._levels)) if price.rate else 0.0
        self._placed = not self._backoff.begin(cost)

    def children(self, path: Path) -> Guesses:
        """Guess what the pool has after the root and ``path``, the newest n-grams first."""
        rates = [
            self._rates[min(len(path), 1), min(rank, 1)]
            for rank, _ in enumerate(self._following(path))
        ]
        scale = min(1.0, MOST_TOGETHER / sum(rates)) if rates else 1.0
        pairs = zip(self._following(path), rates, strict=True)
        return [(token, math.log(min(rate * scale, MOST))) for token, rate in pairs]

    def required(self) -> Sequence[Path]:
        """List the columns of the window, unless it is left out."""
        return self._paths() if self._placed else ()

    def _paths(self) -> list[Path]:
        first, *further = self._levels
        return [
            (*first[:column], *(level[column] for level in further))
            for column in range(self._columns)
        ]

    def _move(self, verified: Verified) -> None:
        """Take the target's tokens after the columns as a new level; full columns are n-grams."""
        said = [verified.after(path) for path in self._paths()]
        new = [self._any(1)[0] if token is None else token for token in said]
        levels = [*self._levels, new]
        if len(levels) < self._ngram:
            self._levels = levels
            return
        self._rounds += 1
        for column, before in enumerate([self._root, *levels[0]]):
            self._keep(before, tuple(level[column] for level in levels[1:]))
        self._levels = [levels[1][1:], *levels[2:]]

    def _keep(self, before: int, ngram: Path) -> None:
        known = self._pool.setdefault(before, [])
        if ngram in known:
            known.remove(ngram)
        known.append(ngram)
        del known[: -self._most]

    def _following(self, path: Path) -> list[int]:
        """List the tokens after the root and ``path``, those of the newest n-grams first."""
        depth, known = len(path), reversed(self._pool.get(self._root, []))
        after = [ngram[depth] for ngram in known if ngram[:depth] == path and depth < len(ngram)]
        return list(dict.fromkeys(after))

    def _any(self, count: int) -> list[int]:
        """Draw tokens of the prompt, as the authors begin."""
        return self._random.choices(self._prompt, k=count)


def _prior(kind: tuple[int, int]) -> float:
    """Return the rate of guesses at a depth, 0 or more, and of a rank, the first or another."""
    depth, rank = kind
    return _OTHER if rank else _FURTHER if depth else _FIRST
