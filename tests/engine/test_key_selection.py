"""Streams that attend to their main row's likeliest keys alone (``stream_keys``)."""

import mlx.core as mx
import numpy as np
import pytest
from brute_force import forward
from random_models import (
    PROMPT,
    STREAMS,
    assert_close,
    decoder_after,
    paired,
    relative_error,
    speculative_model,
    take,
    true_tree,
)

from specstream_mlx.engine.key_selection import SelectingRows
from specstream_mlx.engine.plan import DraftTree

BASES = ["grouped heads, tied", "one kv head, untied", "sliding windows"]


KINDS = ["adapter", "value rotation", "every layer"]


def few_keys(base="grouped heads, tied", keys=3, kind="adapter", **fields):
    return speculative_model(base, stream_keys=keys, **STREAMS[kind], **fields)


def expected_at(model, tree, result, prompt=PROMPT):
    """The reference's stream logits at the accepted node, of the path to it alone."""
    kept = np.arange(len(tree)) if result.kept is None else np.array(result.kept)
    path = tree.tokens[tree.path(int(kept[result.last.item()]))].tolist()
    tokens = [*prompt[:-1], *path]
    start = len(prompt) - 1 if model.mode == "shared" else len(tokens) - 1
    _, streams, _ = forward(model.model, model.config, tokens, model.streams, start)
    return streams[len(tokens) - 1]


@pytest.mark.parametrize(
    ("base", "mode", "kind", "keys", "settings"),
    paired(
        BASES,
        ["lossless", "lossless", "shared"],
        KINDS,
        [1, 3, 5],
        ({}, {"max_nodes": 8}, {"prune_threshold": 1e-9}),
        count=20,
    ),
)
def test_streams_equal_those_of_the_path_alone(base, mode, kind, keys, settings):
    """In every tree; with a window they select within it."""
    model = few_keys(base, keys, kind, mode=mode)
    tree = true_tree(model)
    result = take(decoder_after(model, PROMPT), tree, "beside", **settings)
    assert_close(result.streams.logits, expected_at(model, tree, result))


@pytest.mark.parametrize(("base", "kind"), paired(BASES, KINDS))
def test_streams_beside_some_nodes_select_by_their_own_rows(base, kind, monkeypatch):
    model = few_keys(base, kind=kind)
    tree = true_tree(model)
    last = take(decoder_after(model, PROMPT), tree, "beside").last.item()
    for others in ([0], [len(tree) - 1], [0, 1]):
        chosen = np.array(sorted({last, *others}))
        monkeypatch.setattr(DraftTree, "likeliest_last", lambda *_, chosen=chosen: chosen)
        result = take(decoder_after(model, PROMPT), tree, "beside", stream_nodes=len(chosen))
        assert_close(result.streams.logits, expected_at(model, tree, result))


def the_least(rows, *args):
    weights = WEIGHTS(rows, *args)
    return mx.where(weights < 0, weights, 1e3 - weights)


def of_one_head(rows, queries, keys, seen):
    kept = mx.arange(queries.shape[1])[:, None, None] == 0
    return WEIGHTS(rows, mx.where(kept, queries, 0), keys, seen)


WEIGHTS = SelectingRows._weights


@pytest.mark.parametrize("wrong", [the_least, of_one_head])
def test_a_planted_error_is_noticed(wrong, monkeypatch):
    model = few_keys()
    tree = true_tree(model)
    monkeypatch.setattr(SelectingRows, "_weights", wrong)
    result = take(decoder_after(model, PROMPT), tree, "beside")
    assert relative_error(result.streams.logits, expected_at(model, tree, result)) > 1e-2
