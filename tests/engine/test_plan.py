"""Paths, ancestors, and the nodes that are most probably accepted last."""

import math

import numpy as np
import pytest
from random_models import random_tree
from trees import assert_well_formed

from specstream_mlx.engine.plan import DraftTree, root_only


def test_ancestors_and_paths_follow_the_parents():
    rng = np.random.default_rng(0)
    for _ in range(20):
        tree = random_tree(rng, 7, truth=rng.integers(0, 97, rng.integers(0, 5)).tolist())
        assert_well_formed(tree)
        for node in range(len(tree)):
            walked = [node]
            while walked[-1] != 0:
                walked.append(int(tree.parents[walked[-1]]))
            assert tree.path(node) == walked[::-1]
            assert sorted(walked) == np.flatnonzero(tree.ancestors[node]).tolist()


def test_the_ranking_equals_an_enumeration_of_all_outcomes():
    """Walk every accepted path; a walk stays at a node with what its children leave over."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        tree = random_tree(rng, 7, depth=4, width=3)
        last = np.zeros(len(tree))

        def walk(node, probability, tree=tree, last=last):
            children = [n for n in range(1, len(tree)) if tree.parents[n] == node]
            edges = [math.exp(tree.log_probs[n] - tree.log_probs[node]) for n in children]
            last[node] = probability * (1 - sum(edges))
            for child, edge in zip(children, edges, strict=True):
                walk(child, probability * edge)

        walk(0, 1.0)
        assert last.sum() == pytest.approx(1)
        for count in range(1, len(tree) + 1):
            expected = sorted(np.argsort(-last)[:count].tolist())
            assert tree.likeliest_last(count).tolist() == expected


def test_of_equal_nodes_the_first_come_first():
    parents, depths = np.array([-1, 0, 0, 0], np.int32), np.array([0, 1, 1, 1], np.int32)
    tree = DraftTree(np.arange(4, dtype=np.int32), parents, depths, np.log([1, 0.25, 0.25, 0.25]))
    assert tree.likeliest_last(2).tolist() == [0, 1]
    assert root_only(5).likeliest_last(1).tolist() == [0]
