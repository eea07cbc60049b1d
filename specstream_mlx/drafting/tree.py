"""Draft trees: nodes in breadth-first order, and how they are grown from the streams' guesses.

Node 0 is the root, the newest committed token. A node of depth j is a guess of stream j, so all
nodes of one depth draw from the same candidates, whatever their parent. Other trees, from other
guesses too, are in ``drafters``.
"""

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class DraftTree:
    """A tree of drafted tokens.

    Attributes:
        tokens: (n,) int32, the root first.
        parents: (n,) int32, the index of each node's parent, -1 for the root; a parent comes
            before its children.
        depths: (n,) int32, 0 for the root.
        log_probs: (n,) joint log-probability in nats of each node's path, by whoever drafted it;
            0 for the root. ``None``: nobody said.
    """

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    log_probs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every node is the next one's parent."""
        return bool((self.depths == np.arange(len(self))).all())

    @cached_property
    def ancestors(self) -> np.ndarray:
        """(n, n) bool: row i is true at node i and at each of its ancestors."""
        mask = np.eye(len(self), dtype=bool)
        for node in range(1, len(self)):
            mask[node] |= mask[self.parents[node]]
        return mask

    def path(self, node: int) -> list[int]:
        """Indices from the root to ``node``."""
        return np.flatnonzero(self.ancestors[node]).tolist()

    def to_depth(self, depth: int) -> "DraftTree":
        """The nodes of at most this depth, which come first."""
        count = int(np.searchsorted(self.depths, depth, side="right"))
        if count == len(self):
            return self
        log_probs = None if self.log_probs is None else self.log_probs[:count]
        return DraftTree(self.tokens[:count], self.parents[:count], self.depths[:count], log_probs)

    def likeliest_last(self, count: int) -> np.ndarray:
        """The nodes that are most probably the last accepted one, by ``log_probs``.

        A path ends at a node if that is right and none of its children is, which exclude each
        other: P(path) * (1 - sum P(child)) = P(path) - sum P(path of child). Of equal nodes the
        first ones come first.

        Args:
            count: s, at most n.

        Returns:
            (s,) indices, ascending.
        """
        paths = np.exp(self.log_probs)
        further = np.bincount(self.parents[1:], paths[1:], minlength=len(self))
        best = np.argsort(further - paths, kind="stable")[:count]
        return np.sort(best)


def root_only(root: int) -> DraftTree:
    """The tree without drafts."""
    arrays = (np.array([value], np.int32) for value in (root, -1, 0))
    return DraftTree(*arrays, log_probs=np.zeros(1))


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


def best_first_tree(
    root: int,
    candidates: np.ndarray,
    log_probs: np.ndarray,
    size: int | None,
    threshold: float | None = None,
) -> DraftTree:
    """The ``size`` drafted nodes of highest joint probability under independent streams.

    A path of ranks (r_1 .. r_d) scores the sum of ``log_probs[j, r_j]``. Children never score
    above their parent and ranks descend, so a heap over (next rank, next depth) meets the paths
    in order of score, and the chosen set is closed under ancestors.

    Args:
        root: the newest committed token.
        candidates: (gamma, k) token ids, best first.
        log_probs: (gamma, k) their log-probabilities in nats.
        size: nodes besides the root; fewer where the candidates run out, ``None``: all.
        threshold: a joint probability; nodes below it are left out.
    """
    depth_limit, width = candidates.shape
    least = math.log(threshold) if threshold else -math.inf
    chosen: list[tuple[int, int, int, float]] = []  # (depth, parent's entry here, rank, score)
    heap: list[tuple[float, int, int, int, float]] = []  # (-score, depth, parent, rank, base)

    def push(depth: int, parent: int, rank: int, base: float) -> None:
        if depth <= depth_limit and rank < width:
            score = base + float(log_probs[depth - 1, rank])
            if score >= least:
                heapq.heappush(heap, (-score, depth, parent, rank, base))

    push(1, -1, 0, 0.0)
    while heap and (size is None or len(chosen) < size):
        negative, depth, parent, rank, base = heapq.heappop(heap)
        chosen.append((depth, parent, rank, -negative))
        push(depth, parent, rank + 1, base)
        push(depth + 1, len(chosen) - 1, 0, -negative)

    order = sorted(range(len(chosen)), key=lambda entry: (chosen[entry][0], entry))
    index = {entry: position + 1 for position, entry in enumerate(order)}
    tokens, parents, depths, joint = [root], [-1], [0], [0.0]
    for entry in order:
        depth, parent, rank, score = chosen[entry]
        tokens.append(int(candidates[depth - 1, rank]))
        parents.append(index[parent] if parent >= 0 else 0)
        depths.append(depth)
        joint.append(score)
    arrays = (np.array(x, np.int32) for x in (tokens, parents, depths))
    return DraftTree(*arrays, log_probs=np.array(joint))
