"""Draft trees, and the plan of one decoding step: values that the planner has chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

StreamPlace = Literal["plain", "none", "nodes", "head"]
"""Where streams run: at ``nodes`` of the tree, or nowhere (``none``). ``plain``: nowhere, and
nothing is drafted. ``head``: nowhere, and a draft head guesses after the accepted node."""

LIKELIEST: None = None
"""An expansion that takes the ``width`` guesses of the highest joint probability."""


@dataclass(frozen=True)
class DraftTree:
    """Drafted tokens (n,), breadth first; node 0 is the root, the newest committed token."""

    tokens: np.ndarray
    parents: np.ndarray  # the root's is -1
    depths: np.ndarray
    log_probs: np.ndarray | None = None  # of the paths, as drafted

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
        path = [node]
        while path[-1]:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def to_depth(self, depth: int) -> "DraftTree":
        """Cut the tree to nodes of at most this depth."""
        count = int(np.searchsorted(self.depths, depth, side="right"))
        if count == len(self):
            return self
        log_probs = None if self.log_probs is None else self.log_probs[:count]
        return DraftTree(self.tokens[:count], self.parents[:count], self.depths[:count], log_probs)

    def likeliest_last(self, count: int) -> np.ndarray:
        """Return the ``count`` nodes that are most probably the last accepted one, ascending."""
        # Since at most one child is right: those of the largest P(path) - sum P(path of child).
        assert self.log_probs is not None  # as of all trees that planners make
        paths = np.exp(self.log_probs)
        further = np.bincount(self.parents[1:], paths[1:], minlength=len(self))
        best = np.argsort(further - paths, kind="stable")[:count]
        return np.sort(best)


def root_only(root: int) -> DraftTree:
    token, parent, depth = (np.array([value], np.int32) for value in (root, -1, 0))
    return DraftTree(token, parent, depth, np.zeros(1))


@dataclass(frozen=True, eq=False)
class Verified:
    """A tree that the target has tested."""

    tree: DraftTree
    predictions: np.ndarray  # (n,), the target's tokens after the nodes, -1 at pruned ones

    def after(self, path: Sequence[int]) -> int | None:
        """Return the target's token after the root and ``path``; ``None``: not tested."""
        node, tokens, parents = 0, self.tree.tokens, self.tree.parents
        for token in path:
            matching = np.flatnonzero((tokens == token) & (parents == node))
            if not len(matching):
                return None
            node = int(matching[0])
        token = int(self.predictions[node])
        return None if token < 0 else token


NOTHING_VERIFIED = Verified(root_only(0), np.full(1, -1, np.int32))


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of the next step.

    ``expand`` has, for each guessing stream but the last, the numbers of the guesses after which
    the next one guesses, counted over all paths of its depth with ``width`` candidates each; or
    ``LIKELIEST``. Plain streams ignore it.
    """

    tree: DraftTree  # the tree to verify; its root is not in the KV cache yet
    place: StreamPlace  # in shared mode always ``nodes``
    streams: int = 0  # number of streams that run, from the first on
    width: int = 0  # candidates of each stream for the next tree; 0: the streams guess nothing
    expand: tuple[np.ndarray | None, ...] = ()
    stream_nodes: int | None = (
        None  # number of nodes with streams, the likeliest last ones; None: all
    )
    keep: int | None = None  # nodes that early-exit pruning keeps at most, root included
    threshold: float | None = None  # probability of an edge below which its subtree is dropped

    @property
    def pipelined(self) -> bool:
        """Whether the next call may be enqueued before this step's result is read."""
        return self.place == "plain"

    @property
    def runs_streams(self) -> bool:
        return self.place == "nodes"

    @property
    def prunes(self) -> bool:
        nodes = len(self.tree)
        fewer = self.keep is not None and self.keep < nodes
        return fewer or (self.threshold is not None and nodes > 1)


def widest(plans: Sequence[Plan], shared: Sequence[bool]) -> Plan:
    """Return the plan that a pass of several sequences follows, trees apart.

    No text depends on it, except on ``shared`` streams: if there are any, all run at all nodes.
    """
    plan = max(plans, key=lambda plan: (plan.runs_streams, plan.width, len(plan.tree)))
    pairs = zip(plans, shared, strict=True)
    of_shared = next((plan for plan, is_shared in pairs if is_shared), None)
    if of_shared is None or of_shared is plan:
        return plan
    return replace(plan, place="nodes", streams=of_shared.streams, stream_nodes=None)
