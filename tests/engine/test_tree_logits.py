"""A pass over a tree equals, for each root-to-node path, a forward over that path alone."""

import mlx.core as mx
import numpy as np
import pytest
from brute_force import forward
from plain_rules import reference_scores, walk
from random_models import (
    BASES,
    STREAMS,
    assert_close,
    decoder_after,
    random_prompt,
    random_tree,
    relative_error,
    speculative_model,
    take,
    true_tree,
)

from specstream_mlx.drafting.streams import full_tree
from specstream_mlx.engine import step
from specstream_mlx.engine.rows import TreeShape

PROMPT = random_prompt(9)


def some_tree(seed=0, depth=3):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, PROMPT[-1], depth=depth, width=3, truth=[5, 6])
    assert not tree.is_chain
    return tree


def path_logits(model, tree, node, prompt=PROMPT):
    """mlx_lm's (vocab,) logits after the path to ``node``."""
    tokens = [*prompt[:-1], *tree.tokens[tree.path(node)].tolist()]
    return model.model(mx.array([tokens]))[0, -1]


def kept_nodes(tree, result):
    return list(range(len(tree))) if result.kept is None else np.array(result.kept).tolist()


def tree_error(model, tree):
    """The largest relative difference between a tree's logits and those of its paths."""
    result = take(decoder_after(model, PROMPT), tree, "none")
    expected = mx.stack([path_logits(model, tree, node) for node in range(len(tree))])
    return relative_error(result.logits, expected)


@pytest.mark.parametrize("placement", ["none", "deferred", "beside"])
@pytest.mark.parametrize("base", BASES)
def test_lossless_tree_equals_its_paths(base, placement):
    model = speculative_model(base)
    tree = some_tree()
    result = take(decoder_after(model, PROMPT), tree, placement)
    for node in range(len(tree)):
        assert_close(result.logits[node], path_logits(model, tree, node))


@pytest.mark.parametrize("committed", [0, 1, 247, 250, 255, 256])
@pytest.mark.parametrize("placement", ["deferred", "beside"])
def test_tree_across_the_growth_of_the_cache(committed, placement):
    """The buffers grow by 256 rows: in the tree's pass, or in the streams' pass behind it."""
    model = speculative_model(seed=2)
    prompt = random_prompt(committed + 1, seed=3)
    tree = full_tree(prompt[-1], np.array([[5, 6], [7, 8]]), 2)
    decoder = decoder_after(model, prompt)
    result = take(decoder, tree, placement)
    for node in (0, 2, 6):
        assert_close(result.logits[node], path_logits(model, tree, node, prompt))
    last = result.last.item()
    tokens = [*prompt[:-1], *tree.tokens[tree.path(last)].tolist()]
    start = len(tokens) - 1
    _, streams, _ = forward(model.model, model.config, tokens, model.streams, start)
    assert_close(result.stream_logits, streams[start])
    assert [cache.offset for cache in decoder.caches] == [committed] * 4


@pytest.mark.parametrize("base", ["grouped heads, tied", "sliding windows"])
@pytest.mark.parametrize("mode", ["lossless", "shared"])
@pytest.mark.parametrize("streams", STREAMS)
def test_tree_with_streams_equals_the_row_list(streams, mode, base):
    """Main and stream logits, the streams beside every node and, lossless, deferred."""
    model = speculative_model(base, mode=mode, **STREAMS[streams])
    tree = some_tree()
    from_root = len(PROMPT) - 1
    for placement in ["beside"] + ["deferred"] * (mode == "lossless"):
        decoder = decoder_after(model, PROMPT)
        result = take(decoder, tree, placement)
        for node in range(0, len(tree), 3):
            tokens = [*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()]
            main, by_position, _ = forward(
                model.model, model.config, tokens, model.streams, from_root
            )
            assert_close(result.logits[node], main[-1])
            if node == result.last.item():
                assert_close(result.stream_logits, by_position[len(tokens) - 1])
    assert result.last.item() % 3 == 0, "the accepted node was among those compared"


@pytest.mark.parametrize("pruning", [{}, {"max_nodes": 8}, {"prune_threshold": 1e-9}])
@pytest.mark.parametrize("streams", STREAMS)
def test_deferred_streams_equal_those_beside(streams, pruning):
    """At a node with accepted ancestors, behind rows that are not its ancestors."""
    model = speculative_model(**STREAMS[streams])
    tree = true_tree(model)
    results = [
        take(decoder_after(model, PROMPT), tree, placement, tree_width=4, **pruning)
        for placement in ("beside", "deferred")
    ]
    beside, deferred = results
    assert beside.last.item() == deferred.last.item()
    if not pruning:
        assert tree.depths[beside.last.item()] == 2
    assert_close(deferred.stream_logits, beside.stream_logits)
    assert (np.array(deferred.candidates) == np.array(beside.candidates)).all()
    assert_close(deferred.log_probs, beside.log_probs)
    best = np.argsort(-np.array(beside.stream_logits), axis=1)[:, :4]
    assert (np.array(beside.candidates) == best).all()


@pytest.mark.parametrize("pruner_form", ["residual", "literal"])
@pytest.mark.parametrize("mode", ["lossless", "shared"])
@pytest.mark.parametrize(
    "pruning",
    [
        {"max_nodes": 1},
        {"max_nodes": 6},
        {"prune_threshold": 0.02},
        {"max_nodes": 7, "prune_threshold": 0.01},
    ],
)
def test_pruned_tree(pruning, mode, pruner_form):
    """It keeps what the early-exit logits of the reference say, and keeps its logits."""
    model = speculative_model(mode=mode, pruner_form=pruner_form)
    tree = some_tree(depth=4)
    start = len(PROMPT) - 1
    exits, main = np.empty((2, len(tree), model.config["vocab_size"]))
    for node in range(len(tree)):
        tokens = [*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()]
        logits, _, early = forward(model.model, model.config, tokens, model.streams, start)
        main[node], exits[node] = logits[-1], early[-1]
    scores = reference_scores(exits, tree, pruning.get("prune_threshold"))
    size = pruning.get("max_nodes", len(tree))
    best = sorted(sorted(range(len(tree)), key=lambda node: (-scores[node], node))[:size])

    result = take(
        decoder_after(model, PROMPT),
        tree,
        "deferred" if mode == "lossless" else "beside",
        **pruning,
    )
    assert kept_nodes(tree, result) == best
    compared = [row for row, node in enumerate(best) if np.isfinite(scores[node])]
    assert 1 <= len(compared) < len(tree)
    for row in compared:
        assert_close(result.logits[row], main[best[row]])


@pytest.mark.parametrize("pruning", [{"max_nodes": 9}, {"max_nodes": 12, "prune_threshold": 0.003}])
def test_the_walk_after_pruning(pruning):
    """It accepts the right path as far as that is kept, whatever rows the nodes moved to."""
    model, depths, moved = speculative_model(), [], 0
    for seed in range(6):
        tree = true_tree(model, seed, right=4)
        result = take(decoder_after(model, PROMPT), tree, "deferred", **pruning)
        kept, in_play = kept_nodes(tree, result), np.array(result.in_play)
        playing = [node in kept and in_play[kept.index(node)] for node in range(len(tree))]
        predictions = np.full(len(tree), -1)
        predictions[kept] = np.array(result.predictions)
        expected = walk(tree, predictions, playing)
        assert kept[result.last.item()] == expected
        depths.append(tree.depths[expected])
        moved += depths[-1] > 1 and result.last.item() != expected
    assert max(depths) >= 3
    assert min(depths) < 4
    assert moved >= 2


def sees_everything_before(shape):
    shape.ancestors = mx.tri(len(shape)).astype(mx.bool_)


def position_by_index(shape):
    shape.depths = mx.arange(len(shape), dtype=mx.int32)


@pytest.mark.parametrize("error", [sees_everything_before, position_by_index])
def test_a_planted_error_is_noticed(error, monkeypatch):
    """Negative control of the comparison above."""
    model, tree = speculative_model(), some_tree()
    assert tree_error(model, tree) <= 1e-4

    def wrong_shape(tree):
        shape = TreeShape(tree)
        error(shape)
        return shape

    monkeypatch.setattr(step, "shape_of", wrong_shape)
    assert tree_error(model, tree) > 1e-2
