"""4k tokens of context: memory is the KV cache and one chunk's work."""

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache
from random_models import random_prompt, request, speculative_model

from specstream_mlx import PromptCache
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.scheduler import decode

LENGTH, CHUNK = 4000, 256
# MLX's CPU backend counts ten operations as one task, so that it may allocate the outputs of ten
# more, [chunk, hidden size] in float32, whatever the memory limit is.
AHEAD = 10 * CHUNK * 256 * 4

pytestmark = pytest.mark.slow


def long_model():
    """Keys and values are larger than all else, so that a copy of them is noticed.

    Streams run with the last token alone, in both modes; shared ones are all there then.
    """
    sizes = {"hidden_size": 256, "num_key_value_heads": 4, "intermediate_size": 64}
    return speculative_model(
        mode="shared", seed=1, sizes={**sizes, "max_position_embeddings": 8192}
    )


def peak_of(steps):
    """Bytes in use at the most during the first of ``steps`` above those before it.

    On a CPU MLX allocates a buffer when an operation is enqueued and frees it when it has run, so
    that the peak depends on how far ahead the one is of the other: a race, unless enqueueing waits,
    as it does above the memory limit but for ``AHEAD`` bytes.
    """
    mx.synchronize()
    mx.clear_cache()
    before, limit = mx.get_active_memory(), mx.set_memory_limit(1)
    mx.reset_peak_memory()
    try:
        next(steps)
    finally:
        mx.set_memory_limit(limit)
    return mx.get_peak_memory() - before


def test_prefill_takes_no_more_than_that_of_mlx_lm():
    """Besides the rows only one chunk's work, which on the CPU includes its attention scores."""
    model = long_model()
    for length in (1000, LENGTH):
        prompt, cache = random_prompt(length), PromptCache()
        arguments = {"max_tokens": 1, "prefill_step_size": CHUNK}
        plain = peak_of(generate_step(mx.array(prompt), model.model, **arguments))
        asked = request(prompt, DraftSettings(), CHUNK, prompt_cache=cache)
        peak = peak_of(decode(model, asked))
        held = sum(layer.nbytes for layer in cache.caches)
        assert peak < plain + max(0.05 * plain, AHEAD)
        assert held <= 1.02 * 4 * 2 * (length + KVCache.step) * 256 * 4
        scores = 4 * CHUNK * length * 4
        assert peak < 1.3 * held + 2.5 * scores
