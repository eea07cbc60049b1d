"""Uncommitted tree rows over mlx-lm's KV caches, and compaction to the accepted path."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from ..models.architectures import layer_windows
from .msa import Rows
from .structure import own_caches


class WindowedKVCache(KVCache):
    """The cache of a layer with a sliding window: all rows stay, masks hide those out of reach.

    mlx-lm's own cache for such layers overwrites rows past the window, so it cannot go back.

    Args:
        window: how many rows a row attends to, itself included.
    """

    def __init__(self, window: int):
        super().__init__()
        self.window = window

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> "WindowedQuantizedKVCache":
        """The same rows quantized, with the same window."""
        return WindowedQuantizedKVCache(self.window, super().to_quantized(group_size, bits))


class WindowedQuantizedKVCache(QuantizedKVCache):
    """``WindowedKVCache`` quantized.

    Args:
        window: how many rows a row attends to, itself included.
        cache: the rows.
    """

    def __init__(self, window: int, cache: QuantizedKVCache):
        super().__init__(cache.group_size, cache.bits)
        self.state = cache.state
        self.window = window


def make_caches(model: nn.Module, config: Mapping[str, Any]) -> list[KVCache]:
    """Empty caches of a model's layers that a tree can be verified on.

    Args:
        model: an mlx-lm model.
        config: its ``config.json``.
    """
    return [
        KVCache() if window is None else WindowedKVCache(window)
        for window in layer_windows(config, model)
    ]


def window_left_out(model: nn.Module, config: Mapping[str, Any]) -> int | None:
    """The narrowest sliding window that the model has and mlx_lm's own caches do not apply.

    Args:
        model: an mlx-lm model.
        config: its ``config.json``.
    """
    pairs = zip(layer_windows(config, model), own_caches(model), strict=True)
    left_out = [w for w, own in pairs if w is not None and not hasattr(own, "max_size")]
    return min(left_out, default=None)


class UncommittedRows:
    """Stands in for one layer's KV cache during a pass over new rows.

    The new keys and values go behind the committed rows of the underlying cache, whose ``offset``
    stays where it is, so the next pass overwrites whatever was not committed. An mlx-lm model
    reads ``offset`` as the rows' positions and asks ``make_mask`` for its mask.

    Args:
        cache: an mlx-lm ``KVCache`` or ``QuantizedKVCache``.
        rows: positions and visibility of the new rows.
        skip: rows behind the committed ones that an earlier pass of this step wrote and that
            stay visible as ``rows.hidden_prefix`` says.
        map_values: applied to the new values (1, kv_heads, rows, head_dim).
    """

    def __init__(
        self,
        cache: Any,
        rows: Rows,
        skip: int = 0,
        map_values: Callable[[mx.array], mx.array] | None = None,
    ):
        self._cache, self._rows, self._skip, self._map_values = cache, rows, skip, map_values
        self._new: tuple[mx.array, mx.array] | None = None
        self.offset = rows.positions
        if isinstance(cache, QuantizedKVCache):  # by these mlx-lm's attention knows such a cache
            self.bits, self.group_size = cache.bits, cache.group_size

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """The mask of ``count`` new rows; see ``msa.Rows``.

        The layer's own window counts; ``window_size`` is what a model asks for one without.
        """
        window = getattr(self._cache, "window", window_size)
        return self._rows.attention_mask(count, self._cache.offset, window, return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write the new rows behind the committed ones.

        Args:
            keys, values: (1, kv_heads, rows, head_dim).

        Returns:
            Keys and values of all rows up to the new ones as the underlying cache has them: arrays,
            or mlx's (packed elements, scales, biases).
        """
        if self._map_values is not None:
            values = self._map_values(values)
        self._new = keys, values
        committed = self._cache.offset
        self._cache.offset = committed + self._skip
        try:
            return self._cache.update_and_fetch(keys, values)
        finally:
            self._cache.offset = committed

    def commit(self, count: int, path: mx.array | None) -> None:
        """Move the accepted rows to the front of the new ones and advance the offset.

        Args:
            count: how many rows were accepted.
            path: (count,) their indices among the new rows; ``None``: the first ones.
        """
        if path is None:
            self._cache.offset += count
            return
        # Read from the cache itself, they would make mlx copy the whole buffer to write there.
        # Indexing behind an ellipsis takes three times as long as ``mx.take``.
        keys, values = self._new
        self._cache.update_and_fetch(mx.take(keys, path, axis=2), mx.take(values, path, axis=2))


def commit(layers: Sequence[UncommittedRows], path: Sequence[int]) -> None:
    """Commit the same accepted rows in several layers.

    Args:
        layers: the layers' new rows.
        path: indices of the accepted rows among the new ones, root first.
    """
    in_place = list(path) == list(range(len(path)))
    rows = None if in_place else mx.array(path)
    for layer in layers:
        layer.commit(len(path), rows)
