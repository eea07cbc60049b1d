"""Trees, early-exit scores and selection against plain Python."""

import math

import mlx.core as mx
import numpy as np
import pytest
from plain_rules import reference_scores
from random_models import random_tree
from trees import assert_well_formed

from specstream_mlx.engine.prune import keep_best, path_scores
from specstream_mlx.engine.rows import TreeShapes

VOCAB = 6


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


def device_arrays(tree):
    return [mx.array(array)[None] for array in (tree.tokens, tree.parents, tree.ancestors)]


def random_case(seed, spread=2.0):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 1, depth=4, width=3, vocab_size=VOCAB, truth=[2, 3])
    return tree, rng.normal(0, spread, (len(tree), VOCAB))


@pytest.mark.parametrize("threshold", [None, 0.0, 0.05, 0.999])
def test_path_scores(threshold):
    cut = 0
    for seed in range(20):
        tree, logits = random_case(seed)
        expected = reference_scores(logits, tree, threshold)
        [found] = np.array(path_scores(mx.array(logits)[None], *device_arrays(tree), threshold))
        assert found.dtype == np.float32
        assert found[0] == 0
        finite = np.isfinite(expected)
        assert (np.isfinite(found) == finite).all()
        np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-4, atol=1e-4)
        inner = np.isin(np.arange(len(tree)), tree.parents) & ~finite
        cut += inner.sum()
        assert all(not finite[n] for n in range(1, len(tree)) if not finite[tree.parents[n]])
    assert (cut > 0) == (threshold is not None and threshold > 0), "an inner edge was cut"


def test_keep_best_breaks_ties_by_index_and_knows_what_is_in_play():
    rng = np.random.default_rng(0)
    for _ in range(50):
        size = int(rng.integers(1, 12))
        scores = -rng.integers(0, 4, size).astype(np.float32)
        scores[rng.random(size) < 0.3] = -np.inf
        scores[0] = 0
        for kept_nodes in range(1, size + 1):
            best = sorted(range(size), key=lambda node: (-scores[node], node))[:kept_nodes]
            kept, in_play = keep_best(mx.array(scores)[None], kept_nodes)
            assert kept.tolist() == [sorted(best)]
            assert in_play.tolist() == [[scores[n] > -np.inf for n in sorted(best)]]


def test_trees_side_by_side_are_as_each_alone():
    """What fills up the smaller ones is kept last and never in play."""
    cases = [random_case(seed) for seed in range(8)]
    tree, logits = cases[3]
    cases[3] = tree.to_depth(1), logits[: len(tree.to_depth(1))]
    most, kept_nodes = max(len(tree) for tree, _ in cases), 7
    shapes = TreeShapes([tree.parents.tolist() for tree, _ in cases])
    sizes = [len(tree) for tree, _ in cases]
    assert min(sizes) < kept_nodes < most
    tokens = mx.array([[*tree.tokens.tolist(), *[0] * (most - len(tree))] for tree, _ in cases])
    logits = np.stack([np.pad(own, ((0, most - len(own)), (0, 0))) for _, own in cases])
    drafted = mx.arange(most) < mx.array(sizes)[:, None]
    arrays = tokens, shapes.parents, shapes.ancestors
    scores = path_scores(mx.array(logits), *arrays, 0.05, drafted)
    kept, in_play = keep_best(scores, kept_nodes)
    for number, (tree, own) in enumerate(cases):
        expected = path_scores(mx.array(own)[None], *device_arrays(tree), 0.05)
        assert mx.array_equal(scores[number, : len(tree)], expected[0])
        count = min(kept_nodes, len(tree))
        alone, playing = keep_best(expected, count)
        assert kept[number, :count].tolist() == alone[0].tolist()
        assert in_play[number].tolist() == [*playing[0].tolist(), *[False] * (kept_nodes - count)]


def test_a_normaliser_that_rounds_down_does_not_lift_a_child_above_its_parent(monkeypatch):
    exact = mx.logsumexp
    monkeypatch.setattr(mx, "logsumexp", lambda *args, **kwargs: exact(*args, **kwargs) - 1e-3)
    tree, logits = random_case(0, spread=60.0)
    [scores] = np.array(path_scores(mx.array(logits)[None], *device_arrays(tree)))
    assert (scores[1:] <= scores[tree.parents[1:]]).all()
