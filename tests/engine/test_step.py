"""A step: a tree's logits are those of its paths alone, and streams' those of the row list."""

import math

import mlx.core as mx
import numpy as np
import pytest
import torch
from architecture_models import unlisted_model
from brute_force import forward
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from random_models import (
    BASES,
    PLAIN_HEADS,
    PROMPT,
    STREAMS,
    assert_close,
    decoder_after,
    paired,
    random_tree,
    relative_error,
    speculative_model,
    take,
    true_tree,
)
from trees import full_tree

from specstream_mlx import UserError
from specstream_mlx.engine import step
from specstream_mlx.engine.key_selection import SelectingRows
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.prune import path_scores
from specstream_mlx.engine.rows import TreeShapes
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading.load import read_model
from specstream_mlx.models.streams import Streams


def some_tree(depth=3):
    return random_tree(np.random.default_rng(0), PROMPT[-1], depth=depth, width=3, truth=[5, 6])


def path_to(tree, node):
    return [*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()]


def row_list(model, tree, node):
    """The reference's main, stream and early-exit logits at the end of the path to ``node``."""
    tokens, start = path_to(tree, node), len(PROMPT) - 1
    main, streams, early = forward(model.model, model.config, tokens, model.streams, start)
    return main[-1], streams[len(tokens) - 1], early[-1]


def tree_error(model, tree):
    result = take(decoder_after(model, PROMPT), tree, "none")
    paths = [mx.array([path_to(tree, node)]) for node in range(len(tree))]
    expected = mx.stack([model.model(path)[0, -1] for path in paths])
    return relative_error(result.logits, expected)


FEW_KEYS = {
    f"{keys} keys, {kind}": {**STREAMS[kind], "stream_keys": keys}
    for keys, kind in ((1, "value rotation"), (3, "every layer"), (5, "adapter"))
}


@pytest.mark.parametrize(
    ("streams", "mode", "base", "pruning"),
    paired(
        PLAIN_HEADS | FEW_KEYS,
        ["lossless", "shared"],
        ["grouped heads, tied", "sliding windows", "one kv head, untied"],
        ({}, {"max_nodes": 8}, {"prune_threshold": 1e-9}),
        count=33,
    ),
)
def test_a_tree_with_streams_equals_the_row_list(streams, mode, base, pruning):
    """Streams of a node with accepted ancestors, after rows that are not its ancestors."""
    streams = (PLAIN_HEADS | FEW_KEYS)[streams]
    model = speculative_model(base, mode=mode, **streams)
    tree = true_tree(model)
    result = take(decoder_after(model, PROMPT), tree, "nodes", tree_width=4, **pruning)
    kept = np.arange(len(tree)) if result.kept is None else np.array(result.kept)
    last = result.last.item()
    if mode == "lossless" and not pruning:
        assert tree.depths[last] == 2
    for row in {0, last, *(() if pruning else range(0, len(tree), 3))}:
        main, by_stream, _ = row_list(model, tree, int(kept[row]))
        assert_close(result.logits[row], main)
        if row == last:
            assert_close(result.streams.logits, by_stream)
    best = np.argsort(-np.array(result.streams.logits), axis=1)[:, :4]
    assert (np.array(result.streams.candidates) == best).all()


@pytest.mark.parametrize(
    ("mode", "max_nodes", "threshold"), [("shared", None, 0.02), ("lossless", 7, 1e-4)]
)
def test_pruned_tree(mode, max_nodes, threshold):
    """It keeps what the early-exit logits of the reference say."""
    model = speculative_model(mode=mode)
    tree, scores = some_tree(depth=4), np.zeros(1)
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        row = row_list(model, tree, parent)[2]
        edge = row[tree.tokens[node]] - np.logaddexp.reduce(row)
        score = scores[parent] + edge if edge >= math.log(threshold) else -math.inf
        scores = np.append(scores, score)
    best = sorted(np.argsort(-scores, kind="stable")[:max_nodes].tolist())
    pruning = {"max_nodes": max_nodes, "prune_threshold": threshold}
    result = take(decoder_after(model, PROMPT), tree, "nodes", **pruning)
    assert result.kept.tolist() == best
    assert np.array(result.in_play).tolist() == np.isfinite(scores[best]).tolist()
    assert 1 <= result.in_play.sum().item() < len(tree)


def sees_everything_before(shapes):
    shapes.ancestors = mx.tri(len(shapes)).astype(mx.bool_)[None]


def position_by_index(shapes):
    shapes.depths = mx.arange(len(shapes), dtype=mx.int32)[None]


def plant(error, monkeypatch):
    def wrong_shapes(trees):
        shapes = TreeShapes([tree.parents.tolist() for tree in trees])
        error(shapes)
        return shapes

    monkeypatch.setattr(step, "shapes_of", wrong_shapes)


@pytest.mark.parametrize("error", [sees_everything_before, position_by_index])
def test_a_planted_error_is_noticed(error, monkeypatch):
    model, tree = speculative_model(), some_tree()
    assert tree_error(model, tree) <= 1e-4
    plant(error, monkeypatch)
    assert tree_error(model, tree) > 1e-2


def test_keys_of_one_head_are_noticed(monkeypatch):
    weights = SelectingRows._weights

    def of_one_head(rows, queries, keys, seen):
        kept = mx.arange(queries.shape[1])[:, None, None] == 0
        return weights(rows, mx.where(kept, queries, 0), keys, seen)

    model = speculative_model(**STREAMS["few keys"])
    tree = true_tree(model)
    monkeypatch.setattr(SelectingRows, "_weights", of_one_head)
    result = take(decoder_after(model, PROMPT), tree, "nodes")
    _, expected, _ = row_list(model, tree, result.last.item())
    assert relative_error(result.streams.logits, expected) > 1e-2


def step_with(model, tree, chosen, monkeypatch):
    monkeypatch.setattr(DraftTree, "likeliest_last", lambda _, count: np.array(chosen))
    decoder = decoder_after(model, PROMPT)
    return take(decoder, tree, "nodes", tree_width=4, stream_nodes=len(chosen))


@pytest.mark.parametrize(
    ("kind", "base"), paired(PLAIN_HEADS, ["grouped heads, tied", "sliding windows"])
)
def test_streams_beside_some_nodes_equal_those_beside_all(kind, base, monkeypatch):
    """At an accepted node that has them, in any company; main logits in any case."""
    model = speculative_model(base, **PLAIN_HEADS[kind])
    tree = true_tree(model)
    every = take(decoder_after(model, PROMPT), tree, "nodes", tree_width=4)
    last = every.last.item()
    assert 0 < last < len(tree) - 1
    for chosen in ([last], [0, 1, last, len(tree) - 1]):
        found = step_with(model, tree, sorted(set(chosen)), monkeypatch)
        assert found.streams.present.item()
        assert_close(found.streams.logits, every.streams.logits)
        assert_close(found.logits, every.logits)
    missed = step_with(model, tree, [0, len(tree) - 1], monkeypatch)
    assert not missed.streams.present.item()
    assert_close(missed.logits, every.logits)
    assert missed.guesses().depth == 0


def test_the_likeliest_last_nodes():
    tree = random_tree(np.random.default_rng(0), 7, depth=4, width=3)
    paths = np.exp(tree.log_probs)
    last = [paths[node] - paths[tree.parents == node].sum() for node in range(len(tree))]
    for count in range(1, len(tree) + 1):
        assert tree.likeliest_last(count).tolist() == sorted(np.argsort(last)[-count:].tolist())


def test_a_normaliser_that_rounds_down_does_not_lift_a_child_above_its_parent(monkeypatch):
    exact = mx.logsumexp
    monkeypatch.setattr(mx, "logsumexp", lambda *args, **kwargs: exact(*args, **kwargs) - 1e-3)
    rng = np.random.default_rng(0)
    tree = random_tree(rng, 1, depth=4, width=3, vocab_size=6, truth=[2, 3])
    arrays = rng.normal(0, 60.0, (len(tree), 6)), tree.tokens, tree.parents, tree.ancestors
    [scores] = np.array(path_scores(*(mx.array(array)[None] for array in arrays)))
    assert (scores[1:] <= scores[tree.parents[1:]]).all()


FULL_TREE = full_tree(PROMPT[-1], np.array([[1, 2], [3, 4]]), 2)


def modules_of(model):
    modules = {name: id(module) for name, module in model.named_modules()}
    return modules, {name: id(value) for name, value in tree_flatten(model.parameters())}


def test_the_model_is_as_before_within_a_step_and_after_an_exception(monkeypatch):
    model = speculative_model(stream_mlp="adapter", stream_adapter_rank=4)
    before, decoder = modules_of(model.model), decoder_after(model, PROMPT)

    def fail(*_):
        assert modules_of(model.model) == before
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Streams, "seed", fail)
        with pytest.raises(ZeroDivisionError):
            take(decoder, FULL_TREE, "nodes", max_nodes=4)
    assert modules_of(model.model) == before
    expected = take(decoder_after(model, PROMPT), FULL_TREE, "nodes", max_nodes=4)
    found = take(decoder, FULL_TREE, "nodes", max_nodes=4)
    assert mx.array_equal(found.logits, expected.logits)


def test_what_it_cannot_drive_is_refused(monkeypatch):
    dynamic = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    monkeypatch.setitem(BASES, "other", dynamic)
    model = speculative_model("other")
    with pytest.raises(UserError, match="layer 0 scales its rope"):
        Decoder(model.model, model.streams, make_prompt_cache(model.model))


@pytest.mark.parametrize(
    ("family", "dtype"),
    # MLX's CPU backend gathers experts in float32 alone
    [("Granite", "bfloat16"), ("Cohere2", "float16"), ("Mixtral", "float32")],
)
def test_another_architecture_has_to_pass_the_self_check(family, dtype, tmp_path, monkeypatch):
    """Within the tolerance of its dtype, which still tells a wrong mask from rounding."""
    directory = unlisted_model(tmp_path, family, dtype=getattr(torch, dtype))
    model, _ = read_model(directory)
    assert model(mx.array([[1]])).dtype == getattr(mx, dtype)

    plant(sees_everything_before, monkeypatch)
    with pytest.raises(UserError, match="its logits over a tree as a whole differ"):
        read_model(directory)
