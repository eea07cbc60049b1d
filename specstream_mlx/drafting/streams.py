"""The streams' own trees: full ones, as in the paper, or the most probable nodes."""

from collections.abc import Sequence

import numpy as np

from ..engine.guesses import Path, StreamGuesses
from ..engine.tree import DraftTree
from .best_first import Children, best_first
from .settings import DraftSettings


class StreamsDrafter:
    """Drafts what the streams guess, stream j at depth j.

    Args:
        settings: depth, width and size of the tree, and its threshold.
    """

    def __init__(self, settings: DraftSettings):
        self._depth, self._width = settings.num_streams, settings.tree_width
        self._size, self._threshold = settings.tree_size, settings.draft_threshold

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: the streams have read the text themselves."""

    def depth_of(self, guesses: StreamGuesses) -> int:
        """How deep a tree may be."""
        return guesses.depth if self._depth is None else min(self._depth, guesses.depth)

    def children(self, guesses: StreamGuesses) -> Children:
        """The guesses behind a path, the best ``width`` of them."""
        depth, width = self.depth_of(guesses), self._width
        return lambda path: guesses.behind(path)[:width] if len(path) < depth else []

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
        """Grow the next tree; see ``Drafter``."""
        children = self.children(guesses)
        if self._size is None and self._threshold is None:
            return full_tree(root, children)
        return best_first(root, children, self._size, self._threshold)

    def describe(self) -> str:
        """Say what the trees are like."""
        if self._size is not None:
            shape = f"best-first, {self._size} nodes, width {self._width}"
        else:
            shape = "chain" if self._width == 1 else f"full {self._width}-ary"
        return f"{shape}, depth {self._depth}" if self._depth else shape


def full_tree(root: int, children: Children) -> DraftTree:
    """All that may be drafted: the full tree of the paper (section 3.2), one level per stream.

    Args:
        root: the newest committed token.
        children: the guesses behind a path; none where the tree ends.
    """
    tokens, parents, depths, log_probs = [root], [-1], [0], [0.0]
    level: list[tuple[int, Path]] = [(0, ())]
    while level:
        below: list[tuple[int, Path]] = []
        for parent, path in level:
            for token, log_prob in children(path):
                below.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(parent)
                depths.append(len(path) + 1)
                log_probs.append(log_probs[parent] + log_prob)
        level = below
    arrays = (np.array(values, np.int32) for values in (tokens, parents, depths))
    return DraftTree(*arrays, log_probs=np.array(log_probs))
