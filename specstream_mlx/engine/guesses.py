"""The streams' guesses for the tokens after the root, by the path that they follow."""

from functools import cached_property

import numpy as np

Guesses = list[tuple[int, float]]
"""Guesses for one token, as (token id, log-probability); no token comes twice."""

Path = tuple[int, ...]
"""Token ids on the way from the root, which is left out, to a node; empty for the root."""


class StreamGuesses:
    """The streams' guesses of one step.

    Plain streams guess the token of each depth whatever came before it. Streams that know the token
    before guess anew behind each of the paths that they were asked about, and nothing elsewhere.

    Args:
        tokens: (gamma, k) token ids, best first; (gamma, paths, k) of streams that know the token
            before. gamma is 0 where no streams ran.
        log_probs: log-probabilities of ``tokens`` in nats, of the same shape.
        parents: (gamma, paths) number of the guess that each path ends with, counted over the
            (paths, k) guesses of the depth before. At depth 1 the only path is empty; -1 marks
            entries that fill up a row. ``None``: plain streams.
    """

    def __init__(
        self, tokens: np.ndarray, log_probs: np.ndarray, parents: np.ndarray | None = None
    ):
        self.tokens, self.log_probs, self.parents = tokens, log_probs, parents
        self._by_path: dict[Path, Guesses] | None = None

    @property
    def depth(self) -> int:
        """The number of streams, gamma."""
        return len(self.tokens)

    def behind(self, path: Path) -> Guesses:
        """Return the guesses for the token after ``path``; none if no stream guessed there."""
        if self.parents is not None:
            if self._by_path is None:
                self._by_path = self._paths(self.parents)
            return self._by_path.get(path, [])
        return self._lists[len(path)][0] if len(path) < self.depth else []

    @cached_property
    def _lists(self) -> list[list[Guesses]]:
        """Lists of guesses by depth and path; plain streams have one list a depth."""
        shape = self.depth, -1 if self.depth else 1, self.tokens.shape[-1]
        tokens, scores = (a.reshape(shape).tolist() for a in (self.tokens, self.log_probs))
        return [
            [list(zip(*pair, strict=True)) for pair in zip(*level, strict=True)]
            for level in zip(tokens, scores, strict=True)
        ]

    def _paths(self, parents_by_depth: np.ndarray) -> dict[Path, Guesses]:
        """List the guesses behind each path that was expanded."""
        by_path: dict[Path, Guesses] = {}
        before: list[Path] = []
        for depth, (lists, parents) in enumerate(zip(self._lists, parents_by_depth, strict=True)):
            paths: list[Path] = []
            for guesses, parent in zip(lists, parents.tolist(), strict=True):
                if not depth:
                    path: Path = ()
                else:
                    row, rank = divmod(parent, self.tokens.shape[-1])
                    path = (*before[row], self._lists[depth - 1][row][rank][0])
                paths.append(path)
                if parent >= 0 or not depth:
                    by_path.setdefault(path, guesses)
            before = paths
        return by_path


NO_GUESSES = StreamGuesses(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))
