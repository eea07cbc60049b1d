"""int8 and int4 KV caches: the rows and the text are those of mlx_lm with the same arguments.

Rows computed together differ in the last bits from single ones, so that a value may be quantized
otherwise; the prompts are such that the two best tokens are never nearly tied.
"""

import functools

import mlx.core as mx
import numpy as np
import pytest
from architecture_models import VOCAB_SIZE, WINDOW, pair, with_streams
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache
from random_models import (
    STREAMS,
    Oracle,
    assert_same_tokens,
    empty_tree,
    plain_tokens,
    random_prompt,
    request,
    tokens_of,
)
from tiny_models import tokenizer_ending
from trees import AnyDrafting

from specstream_mlx import UserError, stream_generate
from specstream_mlx.engine.kv import WindowedQuantizedKVCache
from specstream_mlx.generation.batch import decode

CASES = {
    "Llama 3.1": (14, 64),
    "Qwen3 0.6B, tied": (11, 64),
    "Phi-3 mini 128k, longrope": (9, 32),
    "OPT": (14, 64),
}
"""Seed of a prompt without near-ties, and a group size that divides the heads."""

COUNT = 32
CROSSING = 25  # rows of a cache that is quantized in the middle of the text


def prompt_of(case):
    return random_prompt(13, seed=CASES[case][0], vocab_size=VOCAB_SIZE)


def arguments(case, bits, start=0):
    return {"kv_bits": bits, "kv_group_size": CASES[case][1], "quantized_kv_start": start}


@functools.cache
def plain(case, bits, start=0):
    """mlx_lm's tokens, their (count, vocab) log-probabilities, and its caches."""
    model = pair(case).model.model
    caches = make_prompt_cache(model)
    steps = generate_step(
        mx.array(prompt_of(case)),
        model,
        max_tokens=COUNT + 8,
        prompt_cache=caches,
        **arguments(case, bits, start),
    )
    tokens, log_probs = zip(*steps, strict=True)
    return list(tokens), np.stack([np.array(values) for values in log_probs]), caches


def assert_rows_of(caches, expected):
    """The common rows lie within four steps, an accepted row of another node far outside."""
    count = min(caches[0].offset, expected[0].offset)
    for found, plain_cache in zip(caches, expected, strict=True):
        assert type(found) is type(plain_cache) is QuantizedKVCache
        how = {"group_size": found.group_size, "bits": found.bits}
        for pair_of in ((found.keys, plain_cache.keys), (found.values, plain_cache.values)):
            ours, theirs = ([part[..., :count, :] for part in rows] for rows in pair_of)
            away = mx.abs(mx.dequantize(*ours, **how) - mx.dequantize(*theirs, **how))
            scales = mx.repeat(mx.abs(theirs[1]), found.group_size, axis=-1)
            assert (away / scales).max().item() < 4


PAIRED = [
    (case, bits, start)
    for number, case in enumerate(CASES)
    for bits, start in zip((8, 4), ((0, CROSSING), (CROSSING, 0))[number % 2], strict=True)
]


@pytest.mark.parametrize(("case", "bits", "start"), PAIRED)
def test_lossless_text_and_rows_are_those_of_mlx_lm(case, bits, start, monkeypatch):
    expected, log_probs, caches = plain(case, bits, start)
    best = np.sort(log_probs, axis=1)
    assert (best[:COUNT, -1] - best[:COUNT, -2]).min() > 0.02
    assert len(set(expected)) >= 10
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    prompt, kv_cache = prompt_of(case), arguments(case, bits, start)
    found = tokens_of(pair(case).model, prompt, COUNT, kv_cache=kv_cache)
    assert_same_tokens(found[:COUNT], expected, log_probs.__getitem__)
    assert oracle.longest >= 3
    assert oracle.gathered >= 3
    assert_rows_of(oracle.decoders[0].caches, caches)
    if start:
        ends = np.cumsum([len(prompt) - 1, *map(len, oracle.paths)])
        assert start in ends, "a step ended where the rows were quantized"


@pytest.mark.parametrize("start", range(14, 34, 5))
def test_lossless_text_of_settings_that_change(start):
    """A call ahead that is taken back must not have been the one that rows are quantized at."""
    case = "Llama 3.1"
    expected, log_probs, _ = plain(case, 8, start)
    model, prompt = pair(case).model, prompt_of(case)
    options = arguments(case, 8, start) | {"max_tokens": 32}
    steps = decode(model, request(prompt, AnyDrafting(model, prompt, start % 2), **options))
    found = [token for step in steps for token in step.tokens]
    assert_same_tokens(found, expected, log_probs.__getitem__)


@pytest.mark.parametrize(
    ("length", "chunk", "start", "speculation"),
    [(1, 2048, 0, True), (2, 2048, 1, False), (23, 5, 8, True), (23, 22, 22, True)],
)
def test_prefill_quantizes_when_mlx_lm_does(length, chunk, start, speculation, monkeypatch):
    """A chunk sees float rows or quantized ones as a whole; a single token comes before both."""
    case, count = "Llama 3.1", 8
    model, prompt = pair(case).model, random_prompt(length, seed=8, vocab_size=VOCAB_SIZE)
    kv_cache, caches = arguments(case, 4, start), make_prompt_cache(model.model)
    options = {"prefill_step_size": chunk, **kv_cache}
    expected = plain_tokens(model.model, prompt, count, prompt_cache=caches, **options)
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    found = tokens_of(model, prompt, count, chunk, kv_cache, speculation=speculation)
    assert found[:count] == expected
    assert_rows_of(oracle.decoders[0].caches, caches)


@pytest.mark.parametrize(
    ("case", "bits", "start", "streams"),
    [
        ("Llama 3.1", 8, 0, "base MLP"),
        ("Llama 3.1", 4, CROSSING, "value rotation"),
        ("Phi-3 mini 128k, longrope", 8, CROSSING, "adapter"),
        ("OPT", 4, 0, "few keys"),
    ],
)
def test_shared_text_is_that_of_one_token_a_step(case, bits, start, streams, monkeypatch):
    fields = {"stream_mlp": "base", "stream_adapter_rank": 0, **STREAMS[streams]}
    model = with_streams(case, mode="shared", **fields)
    prompt, kv_cache = prompt_of(case), arguments(case, bits, start)
    expected, logits, caches = empty_tree(model, 36, prompt, kv_cache)
    assert expected != plain(case, bits, start)[0][:36], "streams are part of the target"
    oracle = Oracle(expected, width=2, vocab_size=VOCAB_SIZE).install(monkeypatch)
    found = tokens_of(model, prompt, 30, kv_cache=kv_cache)
    assert_same_tokens(found[:30], expected, logits.__getitem__)
    assert oracle.longest >= 3
    assert_rows_of(oracle.decoders[0].caches, caches)


def test_sliding_windows_stay_when_quantized(monkeypatch):
    """mlx_lm leaves Mistral's window out; past it the text is that of one token a step."""
    found_pair = pair("Mistral 0.1, window")
    prompt = random_prompt(30, seed=1, vocab_size=VOCAB_SIZE)
    assert len(prompt) > WINDOW
    kv_cache = {"kv_bits": 8, "kv_group_size": 64, "quantized_kv_start": 0}
    expected, logits, caches = empty_tree(found_pair.model, 30, prompt, kv_cache)
    assert expected != plain_tokens(found_pair.model.model, prompt, 30, **kv_cache)
    assert {type(found) for found in caches} == {WindowedQuantizedKVCache}
    assert {found.window for found in caches} == {WINDOW}
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    found = tokens_of(found_pair.model, prompt, 24, kv_cache=kv_cache)
    assert_same_tokens(found[:24], expected, logits.__getitem__)
    assert oracle.longest >= 3


@pytest.mark.parametrize(
    ("case", "group_size", "sentence"),
    [
        ("Phi-2", 64, "model_type is 'phi', whose attention is not known to read a quantized"),
        ("Gemma 3", 64, "layer 0 has a sliding window, for which mlx_lm keeps a RotatingKVCache"),
        ("OpenLLaMA, linear rope", 32, "kv_group_size is 32, expected one that divides .* of 100"),
    ],
)
def test_models_that_cannot_be(case, group_size, sentence):
    """mlx_lm itself fails on them, in the middle of a text."""
    kv_cache = {"kv_bits": 8, "kv_group_size": group_size, "quantized_kv_start": 0}
    with pytest.raises(UserError, match=sentence):
        stream_generate(pair(case).model, tokenizer_ending(), [1, 2], **kv_cache)
