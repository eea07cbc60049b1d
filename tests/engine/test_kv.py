"""What a step writes into the KV cache: the accepted rows, in place, float or quantized."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache
from random_models import paired

from specstream_mlx.engine.kv import UncommittedRows, commit
from specstream_mlx.engine.rows import Rows


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
        streams = UncommittedRows(ours, Rows(ours.offset), skip=count)
        streams.update_and_fetch(*new)  # deferred, behind them
        gathered = None if path == list(range(len(path))) else mx.array(path)
        rows.commit([len(path)], gathered)
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
