"""Every argument of a wrong type or out of range is refused with one sentence."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache
from random_models import speculative_model
from tiny_models import tiny_llama, tiny_llama_config, tokenizer_ending

from specstream_mlx import UserError, batch_generate, generate, keyed_sampler, stream_generate
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.generation.stream_generate import check_kv_size


@pytest.fixture(scope="module")
def model():
    return speculative_model(seed=1)


def a_cache(rows, heads=2):
    cache = KVCache()
    cache.update_and_fetch(mx.zeros((1, heads, rows, 8)), mx.zeros((1, heads, rows, 8)))
    return cache


def columns(*ids):
    return lambda log_probs: mx.array(ids, mx.uint32)


GENERATE = [
    ("model", "a model", "expected what specstream_mlx.load returns"),
    *(
        ("prompt", wrong, "expected text, token ids or chat messages")
        for wrong in (None, [1.5], mx.array([[1, 2]]), np.array([0.5]))
    ),
    ("prompt", [{"role": "user", "content": 5}], "the tokenizer's chat template fails"),
    ("prompt", [], "the prompt is empty"),
    ("prompt", "a\ud800", "which holds half a character, expected Unicode text"),
    ("prompt", [2**70], "the prompt holds token"),
    ("max_tokens", -2, "expected an integer of at least 1, or -1"),
    ("draft_model", 5, "expected a model of mlx_lm's or None"),
    ("draft_model", tiny_llama(tiny_llama_config() | {"vocab_size": 2000}), "has 2000 tokens"),
    ("stream", mx.default_stream(mx.cpu), "expected mlx_lm's generation_stream"),
    ("input_embeddings", mx.zeros((2, 32)), "input_embeddings were given"),
    ("sampler", lambda log_probs: 3, "the sampler returned 3, expected an mx.array of one"),
    ("sampler", columns(1, 2), "expected an mx.array of one token"),
    ("sampler", columns(97), "drew a token outside the vocabulary"),
    ("logits_processors", [lambda tokens, logits: None], "a logits processor returned None"),
    ("logits_processors", [lambda tokens, logits: logits[0]], "of the shape \\(1, 97\\)"),
    ("kv_bits", "4", "kv_bits is '4', expected 4 or 8"),
    ("prompt_cache", {}, "prompt_cache is {}, expected a PromptCache or a list of mlx_lm's"),
    ("prompt_cache", [], "has 0 layers, expected mlx_lm's caches, one for each of 4"),
    ("prompt_cache", [ArraysCache(2)] * 4, "layer 0 of prompt_cache is"),
    ("prompt_cache", [a_cache(3), *map(a_cache, (2, 2, 2))], r"hold \[2, 3\] rows"),
    ("prompt_cache", [a_cache(2, heads=4)] * 4, "keys have the shape .*, expected 2 rows of the"),
    ("stop", [""], "a stop string is empty"),
    ("verify", "magic", "verify is 'magic', expected one of"),
    ("settings", {}, "settings is {}, expected DraftSettings or None"),
    ("temperature", 0.5, "was given temperature, which is none of its arguments"),
]


@pytest.mark.parametrize(("name", "value", "message"), GENERATE)
def test_generate(name, value, message, model):
    arguments = {"model": model, "tokenizer": tokenizer_ending(), "prompt": [5, 6], name: value}
    is_called_later = name in ("sampler", "logits_processors")
    with pytest.raises(UserError, match=message) as caught:
        (generate if is_called_later else stream_generate)(**arguments)  # at the call itself
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prompts", "a text", "prompts is 'a text', expected a list of prompts"),
        ("max_tokens", -1, "max_tokens is -1, expected an integer of at least 1"),
        ("prompt_caches", {}, "prompt_caches is {}, expected a list"),
        ("prompt_caches", [None], "there are 2 prompts and 1 prompt_caches"),
        ("sampler", keyed_sampler(1), "would draw with the same noise, expected samplers"),
        ("num_streams", 9, "num_streams is 9, the adapter has 3"),
        ("max_tokens", [5, 5, 5], "there are 2 prompts and 3 max_tokens, expected one for each"),
        ("samplers", [None], "there are 2 prompts and 1 samplers, expected one for each"),
        ("samplers", [keyed_sampler(1, top_k=97)] * 2, "top_k is 97, expected less than the"),
        ("draft_model", "small", "draft_model is 'small', expected a model that was loaded"),
    ],
)
def test_batch_generate(name, value, message, model):
    with pytest.raises(UserError, match=message):
        batch_generate(model, tokenizer_ending(), **{"prompts": [[5, 6], [7]], name: value})


def test_a_request_is_checked_before_its_first_step_is_asked_for(model):
    with pytest.raises(UserError, match="which needs the target"):
        decode(model, Request([5, 6], verify="rejection"))


def test_a_text_that_may_not_fit():
    """Where mlx_lm's model chooses its caches, as Llama, ``max_kv_size`` has no effect there."""
    check_kv_size(object(), 20, 4, 16)
    for limit, text in ((17, 21), (-1, "no limit")):
        with pytest.raises(UserError, match=f"prompt and text may have {text}"):
            check_kv_size(object(), 20, 4, limit)
