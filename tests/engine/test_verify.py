"""The verify rules, each against a plain computation."""

import mlx.core as mx
import numpy as np
import pytest
from plain_rules import walk
from random_models import random_tree

from specstream_mlx.engine.verify.rule import follow
from specstream_mlx.engine.verify.typical import typical

VOCAB = 4


@pytest.mark.parametrize("playing", [None, 1.0, 0.7, 0.0])
def test_follow_accepts_what_a_walk_accepts(playing):
    rng = np.random.default_rng(0)
    depths = []
    for _ in range(100):
        tree = random_tree(rng, 1, depth=5, width=4, vocab_size=VOCAB)
        predictions = rng.integers(0, VOCAB, len(tree)).astype(np.int32)
        in_play = rng.random(len(tree)) < (1.0 if playing is None else playing)
        in_play[0] = True
        last = follow(
            mx.array(tree.tokens),
            mx.array(tree.parents),
            mx.array(tree.ancestors),
            mx.array(predictions),
            None if playing is None else mx.array(in_play),
        )
        assert last.dtype == mx.int32
        expected = walk(tree, predictions, in_play)
        assert last.item() == expected
        assert all(in_play[node] for node in tree.path(last.item()))
        depths.append(tree.depths[expected])
    assert max(depths) >= (0 if playing == 0 else 3), "long paths were met"
    assert min(depths) == 0


def test_typical_accepts_the_longest_plausible_path():
    """p(x) > min(0.09, 0.3 exp(-H)): against a loop over all nodes, of equals the likeliest."""
    rng = np.random.default_rng(1)
    deep = 0
    for _ in range(60):
        tree = random_tree(rng, 1, depth=4, width=4, vocab_size=12)
        log_probs = rng.normal(0, 2, (len(tree), 12)).astype(np.float32)
        log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
        best = (0, 0.0, 0)
        for node in range(1, len(tree)):
            likelihood = 0.0
            for step in tree.path(node)[1:]:
                values = log_probs[tree.parents[step]]
                entropy = -(np.exp(values) * values).sum()
                value = values[tree.tokens[step]]
                likelihood += value
                if np.exp(value) <= min(0.09, 0.3 * np.exp(-entropy)):
                    break
            else:
                best = max(best, (int(tree.depths[node]), likelihood, node))
        arrays = map(mx.array, (tree.tokens, tree.parents, tree.ancestors, log_probs))
        assert typical(*arrays).item() == best[2]
        deep = max(deep, best[0])
    assert deep >= 3
