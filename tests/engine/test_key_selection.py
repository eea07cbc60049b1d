"""Streams that attend to their main row's likeliest keys alone (``stream_keys``)."""

import mlx.core as mx
import numpy as np
import pytest
from architecture_models import pair, with_streams
from brute_force import forward
from mlx_lm.models import llama
from random_models import (
    PROMPT,
    STREAMS,
    assert_close,
    decoder_after,
    paired,
    random_prompt,
    relative_error,
    speculative_model,
    take,
    true_tree,
)
from trees import full_tree

from specstream_mlx.engine.key_selection import SelectingRows
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.kv_quantization import KVQuantization
from specstream_mlx.engine.step import Decoder

WAYS = ["beside", "deferred"]
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
    ("way", "base", "mode", "kind", "keys", "settings"),
    paired(
        WAYS,
        BASES,
        ["lossless", "lossless", "shared"],
        KINDS,
        [1, 3, 5],
        ({}, {"max_nodes": 8}, {"prune_threshold": 1e-9}),
        count=20,
    ),
)
def test_streams_equal_those_of_the_path_alone(way, base, mode, kind, keys, settings):
    """In every placement and tree; with a window they select within it."""
    model = few_keys(base, keys, kind, mode=mode)
    tree = true_tree(model)
    result = take(decoder_after(model, PROMPT), tree, way, **settings)
    assert_close(result.streams.logits, expected_at(model, tree, result))


@pytest.mark.parametrize(("mode", "way"), [("lossless", "beside"), ("lossless", "deferred"),
                                           ("shared", "beside")])  # fmt: skip
def test_few_keys_change_the_streams_and_enough_keys_nothing(mode, way):
    """Exactly nothing, and the main stream is the base's in lossless mode whatever they see."""
    found, tree = {}, None
    for keys in (0, 3, 500):
        model = few_keys(keys=keys, mode=mode)
        tree = tree or true_tree(model)
        result = take(decoder_after(model, PROMPT), tree, way)
        found[keys] = result.logits, result.streams.logits
    for enough, every in zip(found[500], found[0], strict=True):
        assert (enough == every).all()
    main, streams = (relative_error(*pair) for pair in zip(found[3], found[0], strict=True))
    assert streams > 1e-2
    assert main > 1e-2 if mode == "shared" else main <= 1e-4


def test_deferred_streams_read_no_other_keys(monkeypatch):
    """Attention of their pass is over the selected rows and their own."""
    model, columns = few_keys(), []
    right = llama.scaled_dot_product_attention

    def watched(queries, keys, *args, **kwargs):
        columns.append((queries.shape[2], keys.shape[2]))
        return right(queries, keys, *args, **kwargs)

    decoder, tree = decoder_after(model, PROMPT), true_tree(model)
    monkeypatch.setattr(llama, "scaled_dot_product_attention", watched)
    take(decoder, tree, "deferred")
    nodes, rows = len(tree), len(PROMPT) - 1 + len(tree)
    # Its last two layers have streams; the first pass runs through all four.
    assert columns == [(nodes, rows)] * 4 + [(3, 3 + 3)] * 2


@pytest.mark.parametrize("case", ["Qwen3 0.6B, tied", "OPT"])
@pytest.mark.parametrize("bits", [4, 8])
def test_over_a_quantized_cache(bits, case, monkeypatch):
    """Weights are those of the rows as they are stored; deferred streams are those beside."""
    found, prompt, weighed = pair(case).model, random_prompt(13, vocab_size=90), []

    def watched(rows, queries, keys, seen):
        weights = WEIGHTS(rows, queries, keys, seen)
        weighed.append((weights, queries, keys, seen))
        return weights

    monkeypatch.setattr(SelectingRows, "_weights", watched)
    logits, tree = {}, full_tree(prompt[-1], np.array([[5, 6], [7, 8]]), 2)
    for keys in (0, 3):
        streams = with_streams(case, stream_keys=keys).streams
        for way in WAYS:
            decoder = Decoder(found.model, streams, make_caches(found.model, found.config))
            decoder.prefill(mx.array(prompt[:-1]))
            KVQuantization(bits, 64, 0).apply(decoder.caches)
            logits[keys, way] = take(decoder, tree, way).streams.logits
    assert_close(logits[3, "deferred"], logits[3, "beside"])
    assert relative_error(logits[3, "beside"], logits[0, "beside"]) > 1e-2
    for weights, queries, keys, seen in weighed:
        stored = mx.dequantize(*keys, group_size=64, bits=bits)
        stored = mx.repeat(stored, queries.shape[1] // stored.shape[1], axis=1)
        scores = np.where(np.array(seen), np.array(queries @ stored.swapaxes(2, 3)), -np.inf)
        expected = np.exp(scores - scores.max(-1, keepdims=True))
        expected = (expected / expected.sum(-1, keepdims=True)).sum(1, keepdims=True)
        assert_close(weights, np.where(np.array(seen), expected, -1))
    assert len(weighed) == 2 * found.streams.config.num_msa_layers


def the_least(rows, *args):
    weights = WEIGHTS(rows, *args)
    return mx.where(weights < 0, weights, 1e3 - weights)


def of_one_head(rows, queries, keys, seen):
    kept = mx.arange(queries.shape[1])[:, None, None] == 0
    return WEIGHTS(rows, mx.where(kept, queries, 0), keys, seen)


WEIGHTS = SelectingRows._weights


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [the_least, of_one_head])
def test_a_planted_error_is_noticed(wrong, way, monkeypatch):
    """Negative control."""
    model = few_keys()
    tree = true_tree(model)
    monkeypatch.setattr(SelectingRows, "_weights", wrong)
    result = take(decoder_after(model, PROMPT), tree, way)
    assert relative_error(result.streams.logits, expected_at(model, tree, result)) > 1e-2
