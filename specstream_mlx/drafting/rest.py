"""Drafts out of a datastore: what followed the end of the text elsewhere.

He et al., REST: Retrieval-Based Speculative Decoding (arXiv 2311.08252). The longest end of the
text that occurs in the datastore says what may follow: 10 tokens behind each of its first 5,000
occurrences. Where REST drafts the commonest beginnings of these, here each token has its share of
what followed the path before it, corrected by how often such shares were right. REST looks up ends
of 16 to 2 tokens; those of 4 to 1 occur more often, and draft 8% more on held-out answers
(benchmarks/NOTES.md).
"""

from collections.abc import Sequence

import numpy as np

from ..engine.guesses import Guesses, Path
from .datastore import open_datastore
from .hit_rates import HitShares
from .proposal import Material, Price, Proposal, Verified

_OCCURRENCES, _DEPTH = 5000, 10


class Retrieval(Proposal):
    """What the datastore says to one text.

    Args:
        material: see there; ``options.datastore`` is the file.
        longest, shortest: tokens of the text's end that are looked up.
    """

    def __init__(self, material: Material, longest: int = 4, shortest: int = 1):
        path = material.options.datastore
        assert path is not None, "see settings.check_drafters"
        self._store, self._width = open_datastore(path), material.width
        self._longest, self._shortest = longest, shortest
        self._end = list(material.prompt[-longest:])
        self._hits: HitShares[tuple[int, bool]] = HitShares()
        self._find()

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens, and judge what was found behind the root by them."""
        path: Path = ()
        for token in tokens:
            shares = self._shares(path)
            if not shares:
                break
            self._hits.judge(self._kind(path), shares, token)
            path = (*path, token)
        self._end = [*self._end, *tokens][-self._longest :]
        self._stale = True

    def begin(self, verified: Verified, price: Price) -> None:
        """Look the end of the text up."""
        if self._stale:
            self._find()

    def children(self, path: Path) -> Guesses:
        """Guess what followed the end of the text and ``path``."""
        return self._hits.corrected(self._kind(path), self._shares(path))

    def _kind(self, path: Path) -> tuple[int, bool]:
        return self._span, bool(path)

    def _find(self) -> None:
        """Find the longest end of the text that occurs; if it does, so do all shorter ones."""
        self._stale = False
        low, high, found = self._shortest, min(self._longest, len(self._end)), None
        self._span = 0
        while low <= high:
            span = (low + high) // 2
            behind = self._store.following(self._end[-span:], _OCCURRENCES, _DEPTH)
            if len(behind):
                self._span, found, low = span, behind, span + 1
            else:
                high = span - 1
        self._behind = np.empty((0, _DEPTH), np.int64) if found is None else found
        self._rows: dict[Path, np.ndarray] = {(): np.arange(len(self._behind))}

    def _shares(self, path: Path) -> list[tuple[int, float]]:
        """List the commonest tokens behind a path, with their shares of the occurrences there."""
        depth = len(path)
        if depth >= _DEPTH:
            return []
        rows = self._rows_behind(path)
        tokens, counts = np.unique(self._behind[rows, depth], return_counts=True)
        tokens, counts = tokens[tokens >= 0], counts[tokens >= 0]
        best = np.argsort(-counts, kind="stable")[: self._width]
        total = len(rows) + 1  # something else may follow
        return [(int(tokens[one]), float(counts[one]) / total) for one in best]

    def _rows_behind(self, path: Path) -> np.ndarray:
        """Return the occurrences that go on with a path."""
        if path not in self._rows:
            rows = self._rows_behind(path[:-1])
            self._rows[path] = rows[self._behind[rows, len(path) - 1] == path[-1]]
        return self._rows[path]
