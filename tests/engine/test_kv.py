"""What a step writes into the KV cache, and what it takes: the accepted rows, in place."""

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache
from random_models import random_prompt, request, speculative_model

from specstream_mlx import PromptCache
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv import UncommittedRows, commit
from specstream_mlx.engine.rows import Rows
from specstream_mlx.generation.batch import decode


def test_a_commit_moves_rows_without_copying_the_buffer():
    cache = KVCache()
    filled = mx.random.normal((1, 2, 32768, 16))
    cache.update_and_fetch(filled * 1, filled * 1)
    cache.offset = 32000
    for step in range(4):
        mx.eval(cache.keys, cache.values)
        if step == 1:  # the first one may come with allocations of its own
            mx.clear_cache()
            mx.reset_peak_memory()
            before = mx.get_active_memory()
        rows = UncommittedRows(cache, Rows(cache.offset))
        new = mx.random.normal((2, 1, 2, 9, 16))
        mx.eval([part[..., -1, :] for part in rows.update_and_fetch(*new)])
        commit([rows], [[0, 2, 5]])
    mx.eval(cache.keys, cache.values)
    assert mx.get_peak_memory() - before < filled.nbytes / 4
    assert cache.offset == 32012


# 4k tokens of context: memory is the KV cache and one chunk's work ------------------------------

LENGTH, CHUNK = 4000, 256
# MLX's CPU backend counts ten operations as one task, so that it may allocate the outputs of ten
# more, [chunk, hidden size] in float32, whatever the memory limit is.
AHEAD = 10 * CHUNK * 256 * 4


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


@pytest.mark.slow
def test_prefill_takes_no_more_than_that_of_mlx_lm():
    """Keys and values are larger than all else, so that a copy of them is noticed."""
    sizes = {"hidden_size": 256, "num_key_value_heads": 4, "intermediate_size": 64}
    sizes["max_position_embeddings"] = 8192
    model = speculative_model(mode="shared", seed=1, sizes=sizes)
    for length in (1000, LENGTH):
        prompt, cache = random_prompt(length), PromptCache()
        arguments = {"max_tokens": 1, "prefill_step_size": CHUNK}
        plain = peak_of(generate_step(mx.array(prompt), model.model, **arguments))
        asked = request(prompt, DraftSettings(), CHUNK, prompt_cache=cache)
        peak = peak_of(decode(model, asked))
        held = sum(layer.nbytes for layer in cache.caches)
        assert peak < plain + max(0.05 * plain, AHEAD)
        assert held <= 1.02 * 4 * 2 * (length + KVCache.step) * 256 * 4
        assert peak < 1.3 * held + 2.5 * 4 * CHUNK * length * 4  # the scores of attention
