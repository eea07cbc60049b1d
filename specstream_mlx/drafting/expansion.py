"""Behind which of their guesses streams that know the token before are asked to guess on."""

import numpy as np

from .settings import DraftSettings
from .static_tree import best_shape

LIKELIEST: None = None
"""Those of the highest joint probability, as many as a stream has candidates."""


def expansion(settings: DraftSettings, depth: int) -> list[np.ndarray | None]:
    """The guesses of each depth but the last, from 1 on, that the next stream is asked about.

    A guess has a number, counted over all the paths of its depth with ``tree_width`` candidates
    each. Trees of fixed shape need certain ones, of whatever probability.

    Args:
        settings: of the tree that the guesses are for.
        depth: how many streams guess.

    Returns:
        Their numbers; ``LIKELIEST`` where probabilities decide.
    """
    width = settings.tree_width
    if settings.static_tree is not None:
        return _inner_ranks(settings, depth)
    if settings.tree_size is None and settings.draft_threshold is None and not settings.lookup:
        return [np.arange(width**level) for level in range(1, depth)]
    return [LIKELIEST] * (depth - 1)


def _inner_ranks(settings: DraftSettings, depth: int) -> list[np.ndarray | None]:
    """The nodes of the static tree that have children."""
    table, width = settings.static_tree, settings.tree_width
    size = settings.tree_size or table.tree_size
    tree = best_shape(table, size, depth, min(width, table.width), settings.draft_threshold)
    inner = set(tree.parents[1:].tolist())
    numbers: list[np.ndarray | None] = []
    place = {0: 0}  # of a node among the paths of its depth
    for level in range(1, depth):
        nodes = [n for n in np.flatnonzero(tree.depths == level).tolist() if n in inner]
        found = [place[int(tree.parents[n])] * width + int(tree.tokens[n]) for n in nodes]
        if not found:  # the tree ends here: one path keeps the shapes alike
            nodes, found = [], [0]
        place = {node: row for row, node in enumerate(nodes)}
        numbers.append(np.array(found))
    return numbers
