"""The nodes of all that could be drafted, best first."""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..engine.guesses import Guesses, Path
from ..engine.tree import DraftTree

Children = Callable[[Path], Guesses]
"""Function of a path that returns guesses for the token after it, given that it is right."""


class Node(NamedTuple):
    """A drafted node.

    Attributes:
        depth: from 1 on.
        parent: the parent's place in the order of nodes, -1 for the root.
        token: token id.
        score: log-probability of the path in nats.
    """

    depth: int
    parent: int
    token: int
    score: float


def likeliest(children: Children, least: float = -math.inf) -> Iterator[Node]:
    """Yield nodes in order of the probability of their paths.

    No child is more probable than its parent, so every beginning of this order is a tree. Of equal
    nodes the one met first comes first.

    Args:
        children: returns the guesses behind a path; called for a node when the one after it is
            asked for.
        least: log-probability of a path below which its node is left out.
    """
    heap: list[tuple[float, int, int, Path]] = []  # (-score, order of arrival, parent, path)
    met, place, parent, score = 0, -1, -1, 0.0
    path: Path = ()
    while True:
        for token, log_prob in children(path):
            below = score + log_prob
            if below >= least and below > -math.inf:
                heapq.heappush(heap, (-below, met, place, (*path, token)))
                met += 1
        if not heap:
            return
        negative, _, parent, path = heapq.heappop(heap)
        score, place = -negative, place + 1
        yield Node(len(path), parent, path[-1], score)


def all_nodes(children: Children) -> Iterator[Node]:
    """Yield all that may be drafted, breadth first: the full tree of the paper (section 3.2)."""
    level: list[tuple[int, Path, float]] = [(-1, (), 0.0)]
    count = 0
    while level:
        below: list[tuple[int, Path, float]] = []
        for place, path, score in level:
            for token, log_prob in children(path):
                yield Node(len(path) + 1, place, token, score + log_prob)
                below.append((count, (*path, token), score + log_prob))
                count += 1
        level = below


def tree_of(root: int, nodes: Sequence[Node]) -> DraftTree:
    """The tree of a beginning of what ``likeliest`` or ``all_nodes`` yields, below ``root``."""
    order = sorted(range(len(nodes)), key=lambda place: (nodes[place].depth, place))
    index = {place: number for number, place in enumerate(order, start=1)} | {-1: 0}
    found = [nodes[place] for place in order]
    return DraftTree(
        np.array([root, *(node.token for node in found)], np.int32),
        np.array([-1, *(index[node.parent] for node in found)], np.int32),
        np.array([0, *(node.depth for node in found)], np.int32),
        np.array([0.0, *(node.score for node in found)]),
    )


def best_first(
    root: int, children: Children, size: int | None, threshold: float | None = None
) -> DraftTree:
    """Draft the ``size`` nodes below the root whose paths are the most probable.

    Args:
        root: token id of the root.
        children: returns the guesses behind a path; called at most once for each chosen node.
        size: nodes besides the root, or fewer if the guesses run out; ``None``: all of them.
        threshold: leave nodes out whose path is less probable than this.
    """
    least = math.log(threshold) if threshold else -math.inf
    return tree_of(root, list(islice(likeliest(children, least), size)))
