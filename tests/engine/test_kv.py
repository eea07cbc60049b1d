"""What a step writes into the KV cache: the accepted rows, in place, float or quantized."""

import io
import re

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from random_models import PROMPT, assert_close, decoder_after, paired, speculative_model, take
from trees import full_tree

from specstream_mlx import UserError
from specstream_mlx.engine.kv import SideBySideKVCache, UncommittedRows, commit, make_caches
from specstream_mlx.engine.rows import Rows
from specstream_mlx.engine.step import Decoder


def test_a_commit_moves_rows_without_copying_the_buffer():
    cache = KVCache()
    filled = mx.random.normal((1, 2, 32768, 16))
    cache.update_and_fetch(filled * 1, filled * 1)
    cache.offset = committed = 32000
    path, count = [0, 2, 5], 4
    written = []
    for step in range(count):
        mx.eval(cache.keys, cache.values)
        if step == 1:  # the first one may come with allocations of its own
            mx.clear_cache()
            mx.reset_peak_memory()
            before = mx.get_active_memory()
        rows = UncommittedRows(cache, Rows(cache.offset))
        keys, values = mx.random.normal((2, 1, 2, 9, 16))
        fetched = rows.update_and_fetch(keys, values)
        mx.eval([part[..., -1, :] for part in fetched])
        del fetched
        commit([rows], [path])
        written.append((keys[..., mx.array(path), :], values[..., mx.array(path), :]))
    mx.eval(cache.keys, cache.values)
    assert mx.get_peak_memory() - before < filled.nbytes / 4
    assert cache.offset == committed + count * len(path)
    for found, expected in zip((cache.keys, cache.values), zip(*written, strict=True), strict=True):
        assert mx.array_equal(found[..., :committed, :], filled[..., :committed, :])
        new = found[..., committed : cache.offset, :]
        assert mx.array_equal(new, mx.concatenate(list(expected), axis=2))


@pytest.mark.parametrize(("sequences", "moving"), [(1, 7), (2, 15)])
def test_a_commit_of_the_first_rows_moves_nothing(sequences, moving):
    """Other rows take three operations an array of one text: indices spread, gathered, written."""
    caches = [KVCache() for _ in range(sequences)]
    for one in caches:
        one.update_and_fetch(*mx.zeros((2, 1, 2, 5, 16)))
    cache = caches[0] if sequences == 1 else SideBySideKVCache(caches)

    def operations(path):
        rows = UncommittedRows(cache, Rows(cache.offset))
        rows.update_and_fetch(*mx.zeros((2, sequences, 2, 9, 16)))
        mx.eval(cache.keys, cache.values)  # and with them the new rows
        commit([rows], [path] * sequences)
        graph = io.StringIO()
        mx.export_to_dot(graph, cache.keys, cache.values)
        return len(re.findall(r"\d+ \[label", graph.getvalue()))

    assert operations([0, 1, 2]) == 0
    assert operations([0, 2, 5]) == moving


@pytest.mark.parametrize(
    ("group_size", "bits", "prefix", "dtype"),
    paired([32, 64, 128], [4, 8], [5, 250], [mx.float32, mx.bfloat16], count=6),
)
def test_accepted_rows_are_stored_bit_for_bit_as_one_by_one(group_size, bits, prefix, dtype):
    """Gathered, in place, and dropped for others; also where the buffers grow."""
    keys, values = (
        mx.random.normal((1, 2, prefix + 20, 128), key=mx.random.key(seed)).astype(dtype)
        for seed in (1, 2)
    )
    caches = [KVCache(), KVCache()]
    for cache in caches:
        cache.update_and_fetch(keys[..., :prefix, :], values[..., :prefix, :])
    ours, expected = (cache.to_quantized(group_size, bits) for cache in caches)
    start = prefix
    for count, path in ((9, [0, 2, 5]), (4, [0, 1]), (7, [0, 3, 4, 6])):
        new = keys[..., start : start + count, :], values[..., start : start + count, :]
        start += count
        rows = UncommittedRows(ours, Rows(ours.offset))
        fetched = rows.update_and_fetch(*new)
        commit([rows], [path])
        for row in path:
            expected.update_and_fetch(*(array[..., row : row + 1, :] for array in new))
        assert ours.offset == expected.offset
        for found, wanted in zip(ours.keys_and_values(), expected.keys_and_values(), strict=True):
            assert all(mx.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
        for found, array in zip(fetched, new, strict=True):
            wanted = mx.quantize(array, group_size=group_size, bits=bits)
            assert all(
                mx.array_equal(a[..., -count:, :], b) for a, b in zip(found, wanted, strict=True)
            )


@pytest.mark.parametrize("placement", ["none", "beside"])
def test_a_trees_rows_take_as_much_memory_behind_any_context(placement):
    """Those that are not committed lie behind the others, and no step leaves anything."""
    model = speculative_model(seed=2)
    tree = full_tree(PROMPT[-1], np.array([[5, 6], [7, 8]]), 2)

    def spare(context):
        decoder = Decoder(model.model, model.streams, make_caches(model.model, model.config))
        for cache in decoder.caches:
            cache.update_and_fetch(*mx.random.normal((2, 1, 2, context, 8)))
        sizes = []
        for _ in range(5):
            mx.eval([cache.state for cache in decoder.caches])
            mx.clear_cache()
            before = mx.get_active_memory()
            result = take(decoder, tree, placement)
            mx.eval(result.arrays())
            del result
            decoder.commit([[0, 2]], [[0, 2]])
            mx.eval([cache.state for cache in decoder.caches])
            sizes.append(mx.get_active_memory() - before)
        rows = sum(cache.nbytes for cache in decoder.caches) // (4 * 2 * 2 * 8 * 4)
        return rows - decoder.caches[0].offset, sizes

    whole = KVCache.step
    (rows, sizes), (same, further) = spare(whole - 20), spare(32 * whole - 20)
    assert rows == same < whole
    masks = len(tree) * (1 + 3 * (placement == "beside")) * 31 * whole
    masks += len(tree) * 31 * whole * (placement == "beside")  # bools, for both kinds of layers
    assert further[0] < sizes[0] + 1.1 * masks  # what a step holds until the next
    assert max(sizes[1:] + further[1:]) < 4096


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_rows_of_a_fixed_capacity(mode):
    """Steps are those of a growing cache, and their arrays have the same shapes at any offset."""
    model, capacity, shapes = speculative_model(seed=2, mode=mode), 60, set()
    tree = full_tree(PROMPT[-1], np.array([[5, 6], [7, 8]]), 2)
    growing, fixed = (decoder_after(model, PROMPT) for _ in range(2))
    fixed.caches = [SideBySideKVCache([cache], capacity) for cache in fixed.caches]
    for _ in range(3):
        expected, found = (take(decoder, tree, "beside") for decoder in (growing, fixed))
        assert_close(found.logits, expected.logits)
        assert_close(found.streams.logits, expected.streams.logits)
        for decoder in (growing, fixed):
            decoder.commit([[0, 2]], [[0, 2]])
        assert isinstance(fixed.caches[0].offset, mx.array)
        shapes |= {cache.keys.shape for cache in fixed.caches}
    assert shapes == {(1, 2, capacity, 8)}
    assert fixed.rows_of(0)[0].offset == growing.caches[0].offset
    for _ in range(10):
        fixed.commit([[0, 1]], [[0, 1]])
    with pytest.raises(UserError, match="has room for 60 rows, expected "):
        take(fixed, tree, "beside")
