"""The trees of the streams against enumerations of all rank paths."""

import itertools
import math

import pytest
from trees import (
    arrays,
    assert_well_formed,
    best_first_tree,
    full_tree,
    random_candidates,
    ranks_of,
)


@pytest.mark.parametrize(("gamma", "width"), [(1, 1), (4, 1), (1, 4), (3, 2), (2, 3), (4, 3)])
def test_full_tree_holds_every_rank_path_in_breadth_first_order(gamma, width):
    candidates, _ = random_candidates(gamma, 4, seed=0)
    tree = full_tree(7, candidates, width)
    assert_well_formed(tree)
    assert tree.tokens[0] == 7
    expected = [p for d in range(gamma + 1) for p in itertools.product(range(width), repeat=d)]
    assert ranks_of(tree, candidates) == expected
    assert tree.is_chain == (width == 1)


@pytest.mark.parametrize("exact_ties", [False, True])
@pytest.mark.parametrize(("gamma", "k"), [(1, 1), (1, 5), (4, 1), (3, 3), (4, 2)])
def test_best_first_tree_holds_the_best_paths_of_all(gamma, k, exact_ties):
    for seed in range(5):
        candidates, log_probs = random_candidates(gamma, k, seed, exact_ties)
        every = {}
        for depth in range(1, gamma + 1):
            for path in itertools.product(range(k), repeat=depth):
                every[path] = sum(float(log_probs[j, rank]) for j, rank in enumerate(path))
        best = sorted(every.values(), reverse=True)
        for size in (1, 2, 3, 7, len(every), len(every) + 5):
            tree = best_first_tree(7, candidates, log_probs, size)
            assert_well_formed(tree)
            assert len(tree) == 1 + min(size, len(every))
            scores = [every[path] for path in ranks_of(tree, candidates)[1:]]
            assert sorted(scores, reverse=True) == best[:size]
            again = best_first_tree(7, candidates, log_probs, size)
            assert all((a == b).all() for a, b in zip(*map(arrays, (tree, again)), strict=True))


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.2, 0.99])
def test_best_first_tree_leaves_out_nodes_below_the_threshold(threshold):
    for seed in range(5):
        candidates, log_probs = random_candidates(3, 3, seed, False)
        every = [path for depth in (1, 2, 3) for path in itertools.product(range(3), repeat=depth)]
        expected = {
            path
            for path in every
            if math.exp(sum(float(log_probs[j, rank]) for j, rank in enumerate(path))) >= threshold
        }
        tree = best_first_tree(7, candidates, log_probs, None, threshold)
        assert_well_formed(tree)
        assert set(ranks_of(tree, candidates)[1:]) == expected


def test_best_first_tree_of_one_candidate_is_a_chain():
    candidates, log_probs = random_candidates(4, 1, seed=0)
    assert best_first_tree(7, candidates, log_probs, 3).is_chain
