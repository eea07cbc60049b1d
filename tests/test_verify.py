"""The verify rules, each against a plain computation."""

import mlx.core as mx
import numpy as np
import pytest
from random_models import random_tree

from specstream_mlx import verify

VOCAB = 4


def walk(tree, predictions, in_play):
    """The last node that the target's own choices reach."""
    node = 0
    while True:
        children = [
            child
            for child in range(1, len(tree))
            if tree.parents[child] == node
            and tree.tokens[child] == predictions[node]
            and in_play[child]
        ]
        if not children:
            return node
        node = children[0]


@pytest.mark.parametrize("playing", [None, 1.0, 0.7, 0.0])
def test_follow_accepts_what_a_walk_accepts(playing):
    rng = np.random.default_rng(0)
    depths = []
    for _ in range(100):
        tree = random_tree(rng, 1, depth=5, width=4, vocab_size=VOCAB)
        predictions = rng.integers(0, VOCAB, len(tree)).astype(np.int32)
        in_play = rng.random(len(tree)) < (1.0 if playing is None else playing)
        in_play[0] = True
        last = verify.follow(
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
