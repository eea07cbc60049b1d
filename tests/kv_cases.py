"""Models whose KV cache can be quantized, with mlx_lm's text of each."""

import functools

import mlx.core as mx
import numpy as np
from architecture_models import VOCAB_SIZE, pair
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from random_models import random_prompt

CASES = {
    "Llama 3.1": (14, 64),
    "Qwen3 0.6B, tied": (11, 64),
    "Phi-3 mini 128k, longrope": (9, 32),
    "OPT": (14, 64),
    "Mistral 0.3": (19, 64),
    "Qwen2.5, yarn": (30, 32),
}
"""Seed of a prompt without near-ties, and a group size that divides the heads."""


BITS = 8, 4


COUNT = 32


CROSSING = 25
"""Rows of a cache that is quantized in the middle of the text."""


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
