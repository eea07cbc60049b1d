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
    step_by,
    take,
    true_tree,
)
from trees import full_tree

from specstream_mlx import UserError
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine import step
from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.engine.key_selection import SelectingRows
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.prune import keep_best, path_scores
from specstream_mlx.engine.rows import TreeShapes
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading import read_model
from specstream_mlx.models.streams import Streams


def reference_scores(logits, tree, threshold=None):
    scores = [0.0]
    for node in range(1, len(tree)):
        row = logits[tree.parents[node]]
        edge = row[tree.tokens[node]] - np.logaddexp.reduce(row)
        if threshold and edge < math.log(threshold):
            edge = -math.inf
        scores.append(scores[tree.parents[node]] + edge)
    return np.array(scores)


def some_tree(seed=0, depth=3):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, PROMPT[-1], depth=depth, width=3, truth=[5, 6])
    assert len(tree) > tree.depths.max() + 1, "it has branches"
    return tree


def path_to(tree, node):
    return [*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()]


def row_list(model, tree, node):
    """The reference's main, stream and early-exit logits at the end of the path to ``node``."""
    tokens, start = path_to(tree, node), len(PROMPT) - 1
    main, streams, early = forward(model.model, model.config, tokens, model.streams, start)
    return main[-1], streams[len(tokens) - 1], early[-1]


def kept_nodes(tree, result):
    return list(range(len(tree))) if result.kept is None else np.array(result.kept).tolist()


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
    result = take(decoder_after(model, PROMPT), tree, "beside", tree_width=4, **pruning)
    kept, last = kept_nodes(tree, result), result.last.item()
    if mode == "lossless" and not pruning:
        assert tree.depths[last] == 2
    for row in {0, last, *(() if pruning else range(0, len(tree), 3))}:
        main, by_stream, _ = row_list(model, tree, kept[row])
        assert_close(result.logits[row], main)
        if row == last:
            assert_close(result.streams.logits, by_stream)
    best = np.argsort(-np.array(result.streams.logits), axis=1)[:, :4]
    assert (np.array(result.streams.candidates) == best).all()


@pytest.mark.parametrize(
    ("pruning", "mode"),
    [
        ({"max_nodes": 6}, "shared"),
        ({"prune_threshold": 0.02}, "shared"),
        ({"max_nodes": 7, "prune_threshold": 0.01}, "lossless"),
    ],
)
def test_pruned_tree(pruning, mode):
    """It keeps what the early-exit logits of the reference say, and keeps its logits."""
    model = speculative_model(mode=mode)
    tree = some_tree(depth=4)
    main, _, exits = zip(*(row_list(model, tree, node) for node in range(len(tree))), strict=True)
    scores = reference_scores(exits, tree, pruning.get("prune_threshold"))
    size = pruning.get("max_nodes", len(tree))
    best = sorted(sorted(range(len(tree)), key=lambda node: (-scores[node], node))[:size])
    result = take(decoder_after(model, PROMPT), tree, "beside", **pruning)
    assert kept_nodes(tree, result) == best
    compared = [row for row, node in enumerate(best) if np.isfinite(scores[node])]
    assert 1 <= len(compared) < len(tree)
    for row in compared:
        assert_close(result.logits[row], main[best[row]])


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


def the_least(rows, *args):
    weights = WEIGHTS(rows, *args)
    return mx.where(weights < 0, weights, 1e3 - weights)


def of_one_head(rows, queries, keys, seen):
    kept = mx.arange(queries.shape[1])[:, None, None] == 0
    return WEIGHTS(rows, mx.where(kept, queries, 0), keys, seen)


WEIGHTS = SelectingRows._weights


@pytest.mark.parametrize("wrong", [the_least, of_one_head])
def test_other_keys_are_noticed(wrong, monkeypatch):
    model = speculative_model(**STREAMS["few keys"])
    tree = true_tree(model)
    monkeypatch.setattr(SelectingRows, "_weights", wrong)
    result = take(decoder_after(model, PROMPT), tree, "beside")
    _, expected, _ = row_list(model, tree, result.last.item())
    assert relative_error(result.streams.logits, expected) > 1e-2


def step_with(model, tree, chosen, monkeypatch):
    monkeypatch.setattr(DraftTree, "likeliest_last", lambda _, count: np.array(chosen))
    decoder = decoder_after(model, PROMPT)
    return take(decoder, tree, "beside", tree_width=4, stream_nodes=len(chosen))


@pytest.mark.parametrize(
    ("kind", "base"), paired(PLAIN_HEADS, ["grouped heads, tied", "sliding windows"])
)
def test_streams_beside_some_nodes_equal_those_beside_all(kind, base, monkeypatch):
    """At an accepted node that has them, in any company; main logits in any case."""
    model = speculative_model(base, **PLAIN_HEADS[kind])
    tree = true_tree(model)
    every = take(decoder_after(model, PROMPT), tree, "beside", tree_width=4)
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


def test_only_the_streams_asked_for_are_computed(monkeypatch):
    model, tree, rows, layer = speculative_model(), some_tree(), [], BorrowedModel.layer

    def counted(self, number, hidden, *args):
        rows.append(hidden.shape[1])
        return layer(self, number, hidden, *args)

    monkeypatch.setattr(BorrowedModel, "layer", counted)
    for count, nodes in ((None, None), (1, None), (2, 2)):
        rows.clear()
        settings = DraftSettings(num_streams=count, stream_nodes=nodes)
        step_by(decoder_after(model, PROMPT), tree, settings)
        assert max(rows) == len(tree) + (nodes or len(tree)) * (count or 3)


# The nodes of a tree: which are accepted last, and which are pruned ---------------------------


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


def test_a_normaliser_that_rounds_down_does_not_lift_a_child_above_its_parent(monkeypatch):
    exact = mx.logsumexp
    monkeypatch.setattr(mx, "logsumexp", lambda *args, **kwargs: exact(*args, **kwargs) - 1e-3)
    rng = np.random.default_rng(0)
    tree = random_tree(rng, 1, depth=4, width=3, vocab_size=6, truth=[2, 3])
    arrays = rng.normal(0, 60.0, (len(tree), 6)), tree.tokens, tree.parents, tree.ancestors
    [scores] = np.array(path_scores(*(mx.array(array)[None] for array in arrays)))
    assert (scores[1:] <= scores[tree.parents[1:]]).all()


# The model is borrowed: it stays as it was, and what cannot be driven is refused ------------------

FULL_TREE = full_tree(PROMPT[-1], np.array([[1, 2], [3, 4]]), 2)


def modules_of(model):
    modules = {name: id(module) for name, module in model.named_modules()}
    return modules, {name: id(value) for name, value in tree_flatten(model.parameters())}


def test_the_model_is_as_before_within_a_step_and_after_an_exception(monkeypatch):
    """The step can then be taken again."""
    model = speculative_model(stream_mlp="adapter", stream_adapter_rank=4)
    before, decoder = modules_of(model.model), decoder_after(model, PROMPT)

    def fail(*_):
        assert modules_of(model.model) == before
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Streams, "seed", fail)
        with pytest.raises(ZeroDivisionError):
            take(decoder, FULL_TREE, "beside", max_nodes=4)
    assert modules_of(model.model) == before
    assert [cache.offset for cache in decoder.caches] == [len(PROMPT) - 1] * 4
    expected = take(decoder_after(model, PROMPT), FULL_TREE, "beside", max_nodes=4)
    found = take(decoder, FULL_TREE, "beside", max_nodes=4)
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
