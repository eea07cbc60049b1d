"""Best-first drafting: the most probable nodes of all that could be drafted."""

import heapq
import math
from collections.abc import Callable, Iterable

import numpy as np

from .tree import DraftTree

Guesses = list[tuple[int, float]]
"""Guesses for one token, as (token id, log-probability); no token comes twice."""

Path = tuple[int, ...]
"""Token ids on the way from the root, which is left out, to a node; empty for the root."""

Children = Callable[[Path], Iterable[tuple[int, float]]]
"""Function of a path that returns guesses for the token after it, given that it is right."""


def best_first(
    root: int, children: Children, size: int | None, threshold: float | None = None
) -> DraftTree:
    """Draft the ``size`` nodes below the root whose paths are the most probable.

    No child is more probable than its parent, so the nodes leave a heap in order of probability
    and what is chosen is closed under parents. Of equal nodes the one met first comes first.

    Args:
        root: token id of the root.
        children: returns the guesses behind a path; called once for each chosen node.
        size: nodes besides the root, or fewer if the guesses run out; ``None``: all of them.
        threshold: leave nodes out whose path is less probable than this.
    """
    least = math.log(threshold) if threshold else -math.inf
    chosen: list[tuple[int, int, int, float]] = []  # (depth, parent's entry here, token, score)
    heap: list[tuple[float, int, int, Path]] = []  # (-score, order of arrival, parent, path)
    met = 0

    def meet(parent: int, path: Path, score: float) -> None:
        nonlocal met
        for token, log_prob in children(path):
            below = score + log_prob
            if below >= least and below > -math.inf:
                heapq.heappush(heap, (-below, met, parent, (*path, token)))
                met += 1

    meet(-1, (), 0.0)
    while heap and (size is None or len(chosen) < size):
        negative, _, parent, path = heapq.heappop(heap)
        chosen.append((len(path), parent, path[-1], -negative))
        if size is None or len(chosen) < size:
            meet(len(chosen) - 1, path, -negative)

    order = sorted(range(len(chosen)), key=lambda entry: (chosen[entry][0], entry))
    index = {entry: place + 1 for place, entry in enumerate(order)} | {-1: 0}
    tokens = [root, *(chosen[entry][2] for entry in order)]
    parents = [-1, *(index[chosen[entry][1]] for entry in order)]
    depths = [0, *(chosen[entry][0] for entry in order)]
    log_probs = np.array([0.0, *(chosen[entry][3] for entry in order)])
    arrays = (np.array(values, np.int32) for values in (tokens, parents, depths))
    return DraftTree(*arrays, log_probs=log_probs)
