"""The streams' own trees: full ones, as in the paper, or the most probable nodes."""

from collections.abc import Sequence

import numpy as np

from .best_first import Guesses, best_first
from .settings import DraftSettings
from .tree import DraftTree


class StreamsDrafter:
    """Drafts what the streams guess, stream j at depth j, whatever the parent.

    Args:
        settings: depth, width and size of the tree, and its threshold.
    """

    def __init__(self, settings: DraftSettings):
        self._depth, self._width = settings.num_streams, settings.tree_width
        self._size, self._threshold = settings.tree_size, settings.draft_threshold

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: the streams have read the text themselves."""

    def levels(self, candidates: np.ndarray, log_probs: np.ndarray) -> list[Guesses]:
        """The guesses for each depth from 1 on."""
        return by_depth(*self._cut(candidates, log_probs))

    def _cut(self, *tables: np.ndarray) -> list[np.ndarray]:
        """Cut (gamma, k) arrays to the depth and width that may be drafted."""
        return [table[: self._depth, : self._width] for table in tables]

    def grow(self, root: int, candidates: np.ndarray, log_probs: np.ndarray) -> DraftTree:
        """Grow the next tree; see ``Drafter``."""
        candidates, log_probs = self._cut(candidates, log_probs)
        if self._size is None and self._threshold is None:
            return full_tree(root, candidates, self._width, log_probs)
        return best_first_tree(root, candidates, log_probs, self._size, self._threshold)

    def describe(self) -> str:
        """Say what the trees are like."""
        if self._size is not None:
            shape = f"best-first, {self._size} nodes, width {self._width}"
        else:
            shape = "chain" if self._width == 1 else f"full {self._width}-ary"
        return f"{shape}, depth {self._depth}" if self._depth else shape


def by_depth(candidates: np.ndarray, log_probs: np.ndarray) -> list[Guesses]:
    """(gamma, k) tokens and log-probabilities as the guesses for each depth from 1 on."""
    return [
        list(zip(tokens, scores, strict=True))
        for tokens, scores in zip(candidates.tolist(), log_probs.tolist(), strict=True)
    ]


def best_first_tree(
    root: int,
    candidates: np.ndarray,
    log_probs: np.ndarray,
    size: int | None,
    threshold: float | None = None,
) -> DraftTree:
    """The ``size`` drafted nodes of highest joint probability under independent streams.

    A path scores the sum of its guesses' log-probabilities.

    Args:
        root: the newest committed token.
        candidates: (gamma, k) token ids, best first.
        log_probs: (gamma, k) their log-probabilities in nats.
        size: nodes besides the root; fewer where the candidates run out, ``None``: all.
        threshold: a joint probability; nodes below it are left out.
    """
    levels = by_depth(candidates, log_probs)
    return best_first(
        root, lambda path: levels[len(path)] if len(path) < len(levels) else (), size, threshold
    )


def full_tree(
    root: int, candidates: np.ndarray, width: int, log_probs: np.ndarray | None = None
) -> DraftTree:
    """The full ``width``-ary tree of the paper (section 3.2), one level per stream.

    Args:
        root: the newest committed token.
        candidates: (gamma, k) token ids, k >= width.
        width: children of every inner node; 1 makes a chain.
        log_probs: (gamma, k) the candidates' log-probabilities in nats.
    """
    tokens, parents, depths = [root], [-1], [0]
    joint = None if log_probs is None else [np.zeros(1)]
    level = [0]
    for depth, row in enumerate(candidates, start=1):
        next_level = []
        for parent in level:
            for token in row[:width]:
                next_level.append(len(tokens))
                tokens.append(int(token))
                parents.append(parent)
                depths.append(depth)
        if joint is not None:
            joint.append(np.add.outer(joint[-1], log_probs[depth - 1, :width]).ravel())
        level = next_level
    arrays = (np.array(x, np.int32) for x in (tokens, parents, depths))
    return DraftTree(*arrays, log_probs=None if joint is None else np.concatenate(joint))
