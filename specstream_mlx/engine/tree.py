"""Draft trees: tokens in breadth-first order; node 0 is the root, the newest committed token."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .guesses import Path


@dataclass(frozen=True)
class DraftTree:
    """A tree of drafted tokens.

    Attributes:
        tokens: (n,) int32, the root first.
        parents: (n,) int32, the index of each node's parent, -1 for the root; a parent comes
            before its children.
        depths: (n,) int32, 0 for the root.
        log_probs: (n,) joint log-probability in nats of each node's path, by the drafter; 0 for the
            root. ``None``: unknown.
    """

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    log_probs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def ancestors(self) -> np.ndarray:
        """(n, n) bool: row i is true at node i and at each of its ancestors."""
        mask = np.eye(len(self), dtype=bool)
        for node in range(1, len(self)):
            mask[node] |= mask[self.parents[node]]
        return mask

    def path(self, node: int) -> list[int]:
        """List the indices from the root to ``node``."""
        path = [node]
        while path[-1]:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def to_depth(self, depth: int) -> "DraftTree":
        """Cut the tree to nodes of at most this depth, which come first."""
        count = int(np.searchsorted(self.depths, depth, side="right"))
        if count == len(self):
            return self
        log_probs = None if self.log_probs is None else self.log_probs[:count]
        return DraftTree(self.tokens[:count], self.parents[:count], self.depths[:count], log_probs)

    def likeliest_last(self, count: int) -> np.ndarray:
        """Find the nodes that are most probably the last accepted one, by ``log_probs``.

        The accepted path ends at a node if it is right and none of its children is. Only one child
        can be, so the probability is P(path) - sum P(path of child). Ties go to the lower index.

        Args:
            count: number of nodes s, at most n.

        Returns:
            (s,) indices, ascending.
        """
        if self.log_probs is None:
            raise ValueError("nobody knows how probable the nodes are")
        paths = np.exp(self.log_probs)
        further = np.bincount(self.parents[1:], paths[1:], minlength=len(self))
        best = np.argsort(further - paths, kind="stable")[:count]
        return np.sort(best)


def root_only(root: int) -> DraftTree:
    """Make the tree without drafts."""
    token, parent, depth = (np.array([value], np.int32) for value in (root, -1, 0))
    return DraftTree(token, parent, depth, np.zeros(1))


@dataclass(frozen=True, eq=False)
class Verified:
    """A tree that the target has tested, and its own tokens there.

    Attributes:
        tree: the tree.
        predictions: (n,) int32, the target's token after each node; -1 at nodes that were pruned.
    """

    tree: DraftTree
    predictions: np.ndarray

    def after(self, path: Path) -> int | None:
        """Return the target's token behind the step's root and ``path``; ``None``: not tested."""
        node, tokens, parents = 0, self.tree.tokens, self.tree.parents
        for token in path:
            found = np.flatnonzero((tokens == token) & (parents == node))
            if not len(found):
                return None
            node = int(found[0])
        token = int(self.predictions[node])
        return None if token < 0 else token


NOTHING_VERIFIED = Verified(root_only(0), np.full(1, -1, np.int32))
