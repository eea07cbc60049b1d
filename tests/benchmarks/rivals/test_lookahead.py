"""The window of lookahead decoding is a draft tree, which moves on by what the target says."""

import random

import numpy as np
import pytest
from trees import assert_well_formed

from benchmarks.rivals.lookahead import Lookahead
from specstream_mlx.drafting.best_first import tree_of, with_paths
from specstream_mlx.drafting.proposer import FREE, Material, Price
from specstream_mlx.engine.plan import NOTHING_VERIFIED, Verified


def lookahead(size, prompt=(1, 2, 3)):
    found = Lookahead(Material(list(prompt)), *size)
    found.begin(NOTHING_VERIFIED, FREE)
    return found


def target(path):
    """A target whose token depends on all that comes before."""
    return random.Random(str(path)).randrange(5)


def verified_by_target(root, paths):
    tree = tree_of(root, with_paths((), paths))
    assert_well_formed(tree)
    ends = [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
    return Verified(tree, np.array([target(path) for path in ends], np.int32))


@pytest.mark.parametrize("size", [(5, 4, 2), (3, 2, 3), (1, 3, 1), (5, 7, 7)])
def test_the_window_is_the_papers_jacobi_iteration(size):
    """Against the authors' two-dimensional window, rows and columns, computed in a plain way."""
    columns, ngram, kept = size
    found, root = lookahead(size), 3
    window = [list(found._levels[0])]
    pool = {}
    for _ in range(3 * ngram):
        behind = []
        for column in range(columns):
            context = [root, *window[0][:column], *(level[column] for level in window[1:])]
            behind.append(target(tuple(context)))
        if len(window) < ngram - 1:
            window.append(behind)
        else:
            for column in range(columns):
                key = [root, *window[0]][column]
                gram = (*(level[column] for level in window[1:]), behind[column])
                known = [one for one in pool.get(key, []) if one != gram]
                pool[key] = [*known, gram][-kept:]
            below = [*window[1:], behind]
            window = [below[0][1:], *below[1:]]
        result = verified_by_target(root, found.required())
        root = int(result.predictions[0])
        found.accept([root])
        found.begin(result, FREE)
        assert found._levels == window
        assert found._pool == pool
        nodes = len(with_paths((), found.required()))
        assert nodes <= columns * (ngram - 1) - 1 or len(window) < ngram - 1
    firsts = dict.fromkeys(gram[0] for gram in reversed(pool.get(root, [])))
    assert [token for token, _ in found.children(())] == list(firsts)


def test_a_window_that_brings_nothing_rests():
    found, placed, root = lookahead((3, 3, 2)), [], 3
    for number in range(200):
        result = verified_by_target(root, found.required())
        root = 1000 + number
        found.accept([root])
        found.begin(result, Price(rate=1.0, row=0.05))
        placed.append(bool(found.required()))
    assert np.diff(np.flatnonzero(placed)).max() >= 32
    assert sum(placed) < 40
