"""The walk along accepted drafts against one in plain Python."""

import mlx.core as mx
import numpy as np
import pytest
from plain_rules import walk
from random_models import random_tree

from specstream_mlx.engine.verify.rule import follow

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
