"""KV caches in which a tree's rows stay uncommitted until it is known which are accepted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from ..models.architectures import layer_windows
from .rows import Rows


class WindowedKVCache(KVCache):
    """The cache of a layer with a sliding window: all rows stay, masks hide those out of reach.

    mlx-lm's own cache for such layers overwrites rows past the window, so it cannot go back.
    """

    def __init__(self, window: int):
        super().__init__()
        self.window = window

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> "WindowedQuantizedKVCache":
        return WindowedQuantizedKVCache(self.window, super().to_quantized(group_size, bits))


class WindowedQuantizedKVCache(QuantizedKVCache):
    """``WindowedKVCache`` quantized: the rows of ``cache``."""

    def __init__(self, window: int, cache: QuantizedKVCache):
        super().__init__(cache.group_size, cache.bits)
        self.state = cache.state
        self.window = window


class SideBySideKVCache:
    """One layer's rows of several sequences, each from the first column on.

    Unlike in mlx_lm's ``BatchKVCache``, which pads on the left, a sequence can go back by itself.
    """

    step = KVCache.step

    def __init__(self, caches: Sequence[KVCache]):
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._set_lengths([cache.offset for cache in caches])
        for number, cache in enumerate(caches):
            if cache.offset:
                stored = cache.keys_and_values()
                keys, values = self._reserve(len(caches), stored[0], stored[1], max(self.lengths))
                rows = slice(number, number + 1), slice(None), slice(cache.offset)
                keys[rows], values[rows] = stored

    def columns(self, rows: int) -> int:
        """Return the number of columns that ``write`` returns for ``rows`` new rows."""
        return max(self.lengths) + rows

    def advance(self, counts: Sequence[int]) -> None:
        self._set_lengths([sum(pair) for pair in zip(self.lengths, counts, strict=True)])

    def trim(self, count: int) -> None:
        self.advance([-count] * len(self.lengths))

    def keep(self, sequences: Sequence[int]) -> None:
        if self.keys is not None and self.values is not None:
            kept = mx.array(list(sequences))
            self.keys, self.values = self.keys[kept], self.values[kept]
        self._set_lengths([self.lengths[number] for number in sequences])

    def of(self, number: int) -> KVCache:
        cache, rows = KVCache(), self.lengths[number]
        if rows and self.keys is not None and self.values is not None:
            part = slice(number, number + 1), slice(None), slice(rows)
            cache.state = self.keys[part], self.values[part], rows
        return cache

    def write(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows = keys.shape[2]
        columns = self.columns(rows)
        held = self._reserve(len(keys), keys, values, columns)
        self.keys, self.values = self.put(*held, keys, values)
        return self.keys[..., :columns, :], self.values[..., :columns, :]

    def put(
        self, held_keys: mx.array, held_values: mx.array, keys: mx.array, values: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Return buffers with new rows after each sequence's own."""
        places = (self.offset[:, None] + mx.arange(keys.shape[2]))[:, None, :, None]
        return (
            mx.put_along_axis(held_keys, mx.broadcast_to(places, keys.shape), keys, axis=2),
            mx.put_along_axis(held_values, mx.broadcast_to(places, values.shape), values, axis=2),
        )

    def _set_lengths(self, lengths: list[int]) -> None:
        self.lengths, self.offset = lengths, mx.array(lengths, mx.int32)

    def _reserve(
        self, sequences: int, keys: mx.array, values: mx.array, columns: int
    ) -> tuple[mx.array, mx.array]:
        """Grow to ``columns``, in whole steps; heads and sizes are those of the arrays."""
        count = -(-columns // self.step) * self.step
        if self.keys is None or self.values is None:
            self.keys, self.values = (
                mx.zeros((sequences, like.shape[1], count, like.shape[3]), like.dtype)
                for like in (keys, values)
            )
        elif count > self.keys.shape[2]:
            more = [(0, 0), (0, 0), (0, count - self.keys.shape[2]), (0, 0)]
            self.keys, self.values = mx.pad(self.keys, more), mx.pad(self.values, more)
        return self.keys, self.values


CommittedRows = KVCache | QuantizedKVCache | SideBySideKVCache


def make_caches(model: nn.Module, config: Mapping[str, Any]) -> list[KVCache]:
    """Make an empty KV cache for each layer, of a kind that can drop rejected drafts."""
    return [
        KVCache() if window is None else WindowedKVCache(window)
        for window in layer_windows(config, model)
    ]


Fetched = mx.array | tuple[mx.array, mx.array, mx.array]
"""Keys or values as a cache has them: an array, or packed elements, scales and biases."""


class UncommittedRows:
    """Stands in for one layer's KV cache during a pass over new rows.

    These go after the committed rows of the underlying cache, whose ``offset`` stays where it is,
    so the next pass overwrites whatever was not committed. ``map_values`` is applied to the new
    values. ``skip`` rows after the committed ones are of earlier passes of this step.
    """

    def __init__(
        self,
        cache: CommittedRows,
        rows: Rows,
        map_values: Callable[[mx.array], mx.array] | None = None,
        skip: int = 0,
    ):
        self.cache, self._rows, self._map_values, self._skip = cache, rows, map_values, skip
        self.new: tuple[mx.array, mx.array] | None = None
        self.offset = rows.offset
        if isinstance(cache, QuantizedKVCache):  # by these mlx-lm's attention knows such a cache
            self.bits, self.group_size = cache.bits, cache.group_size

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        cache = self.cache
        if isinstance(cache, SideBySideKVCache):
            return self._rows.mask_side_by_side(cache.offset, cache.columns(count))
        window = getattr(cache, "window", window_size)
        return self._rows.attention_mask(count, cache.offset, window, return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Fetched, Fetched]:
        if self._map_values is not None:
            values = self._map_values(values)
        self.new, cache = (keys, values), self.cache
        if isinstance(cache, SideBySideKVCache):
            return cache.write(keys, values)
        committed = cache.offset
        cache.offset = committed + self._skip
        try:
            return cache.update_and_fetch(keys, values)
        finally:
            cache.offset = committed

    def commit(self, counts: Sequence[int], paths: mx.array | None) -> None:
        """Move the rows ``paths`` (sequences, 1, most, 1) to the front of the new ones.

        ``None``: these are the first ``counts``, and lie there already.
        """
        cache = self.cache
        if paths is not None:
            assert self.new is not None  # the pass has written it
            # If these were read from the cache, mlx would copy its whole buffer to write there.
            # ``mx.take`` would take one operation more.
            keys, values = (mx.take_along_axis(array, paths, axis=2) for array in self.new)
        if isinstance(cache, SideBySideKVCache):
            if paths is not None:
                cache.write(keys, values)
            cache.advance(counts)
        elif paths is not None:
            cache.update_and_fetch(keys, values)
        else:
            cache.offset += counts[0]


def commit(
    layers: Sequence[UncommittedRows],
    paths: Sequence[Sequence[int]],
    move: Callable[[Sequence[UncommittedRows], mx.array], bool] | None = None,
) -> None:
    """Commit in several layers the accepted rows: each sequence's indices among the new ones.

    ``move`` may write them where they belong, and returns whether it has.
    """
    counts = [len(path) for path in paths]
    rows = None
    if any(list(path) != list(range(len(path))) for path in paths):
        most = max(counts)
        padded = [[*path, *[0] * (most - len(path))] for path in paths]
        rows = mx.array(padded)[:, None, :, None]
        if move is not None and move(layers, rows):
            rows = None  # they lie where they belong
    for layer in layers:
        layer.commit(counts, rows)
