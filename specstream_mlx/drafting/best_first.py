"""Nodes in order of their probability, and the trees made from them."""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..engine.guess import Guesses, Path
from ..engine.plan import DraftTree

Children = Callable[[Path], Guesses]
"""Function of a path that returns guesses for the token after it, given that it is right."""

UNLIKELY = -100.0  # log-probability of a node that is not expected to be right
LEAST = math.log(0.02)  # of the least probable path considered: flat (studied)


class Node(NamedTuple):
    """A drafted node; ``parent`` counts in the order of nodes, -1 is the root."""

    depth: int
    parent: int
    token: int
    score: float


def likeliest(children: Children, least: float = -math.inf) -> Iterator[Node]:
    """Yield nodes in order of the probability of their paths, of equals the earlier one first.

    Every beginning of this order is a tree. Paths below ``least`` (nats) are left out.
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
    """Yield all nodes breadth first: the full tree of the paper (section 3.2)."""
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
    """Make the tree of the first nodes from ``likeliest`` or ``all_nodes``, below ``root``."""
    order = sorted(range(len(nodes)), key=lambda place: (nodes[place].depth, place))
    index = {place: number for number, place in enumerate(order, start=1)} | {-1: 0}
    ordered = [nodes[place] for place in order]
    return DraftTree(
        np.array([root, *(node.token for node in ordered)], np.int32),
        np.array([-1, *(index[node.parent] for node in ordered)], np.int32),
        np.array([0, *(node.depth for node in ordered)], np.int32),
        np.array([0.0, *(node.score for node in ordered)]),
    )


def best_nodes(children: Children, size: int | None, threshold: float | None = None) -> list[Node]:
    """List the ``size`` (``None``: all) likeliest nodes of probability ``threshold`` or more."""
    least = math.log(threshold) if threshold else -math.inf
    return list(islice(likeliest(children, least), size))


def with_paths(nodes: Sequence[Node], paths: Sequence[Path]) -> list[Node]:
    """Append the missing nodes of some paths, with probability 0."""
    nodes = list(nodes)
    if not paths:
        return nodes
    known = {(node.parent, node.token): place for place, node in enumerate(nodes)}
    for path in paths:
        parent = -1
        for depth, token in enumerate(path, start=1):
            place = known.setdefault((parent, token), len(nodes))
            if place == len(nodes):
                nodes.append(Node(depth, parent, token, UNLIKELY))
            parent = place
    return nodes
