"""Which rules go with which samplers and trees, and the walks of ``greedy`` and ``typical``."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_sampler
from random_models import random_tree, request, speculative_model

from specstream_mlx import Sampling, UserError, keyed_sampler
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.verify.by_name import find_rule
from specstream_mlx.engine.verify.rule import follow
from specstream_mlx.engine.verify.typical import typical
from specstream_mlx.generation.batch import decode


@pytest.mark.parametrize(
    ("name", "sampler", "sentence"),
    [
        ("greedy", Sampling(temp=0.5), "verify is 'greedy', but a temperature"),
        ("rejection", None, "needs the target's probabilities"),
        ("rejection", keyed_sampler(1, sampler=make_sampler(temp=0.5)), "needs the target's"),
        ("typical", Sampling(), "needs the target's probabilities"),
        ("best", None, "verify is 'best', expected one of"),
    ],
)
def test_rules_that_do_not_go_with_a_sampler(name, sampler, sentence):
    with pytest.raises(UserError, match=sentence):
        find_rule(name, sampler)


KEPT = "lets the drawn tokens decide what is kept"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tree_size": 8}, KEPT),
        ({"max_nodes": 4, "tree_size": None}, KEPT),
        ({"tree_size": None, "lookup": True}, "whose drafts are not drawn, expected a tree"),
    ],
)
def test_rejection_refuses_trees_that_drawn_tokens_shape(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        DraftSettings(**fields).check_drawn(None)
    conditioned = speculative_model(stream_head="conditioned", stream_head_rank=4)
    chain = DraftSettings(tree_width=1, tree_size=None)
    asked = request([1], chain, sampler=Sampling(temp=1), verify="rejection")
    with pytest.raises(UserError, match="stream_head is 'conditioned'"):
        next(decode(conditioned, asked))


def walk(tree, predictions, in_play):
    node = 0
    for child in range(1, len(tree)):  # breadth first: children come after their parents
        right = tree.parents[child] == node and tree.tokens[child] == predictions[node]
        if right and in_play[child]:
            node = child
    return node


@pytest.mark.parametrize("playing", [None, 0.7, 0.0])
def test_follow_accepts_what_a_walk_accepts(playing):
    rng = np.random.default_rng(0)
    depths = []
    for _ in range(100):
        tree = random_tree(rng, 1, depth=5, width=4, vocab_size=4)
        predictions = rng.integers(0, 4, len(tree)).astype(np.int32)
        in_play = rng.random(len(tree)) < (1.0 if playing is None else playing)
        in_play[0] = True
        arrays = map(mx.array, (tree.tokens, tree.parents, tree.ancestors, predictions))
        last = follow(*arrays, None if playing is None else mx.array(in_play))
        expected = walk(tree, predictions, in_play)
        assert last.item() == expected
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
