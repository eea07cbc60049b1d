"""Uncommitted tree rows over mlx-lm's KV caches, and compaction to the accepted path."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .msa import Rows, attention_mask


class UncommittedRows:
    """Stands in for one layer's KV cache during a pass over new rows.

    The new keys and values go behind the committed rows of the underlying cache, whose ``offset``
    stays where it is, so the next pass overwrites whatever was not committed. An mlx-lm model
    reads ``offset`` as the rows' positions and asks ``make_mask`` for its mask.

    Args:
        cache: an mlx-lm ``KVCache``.
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
        self.offset = rows.positions

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """The mask of ``count`` new rows; see ``msa.attention_mask``."""
        return attention_mask(self._rows, count, self._cache.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the new rows behind the committed ones; returns all rows up to them."""
        if self._map_values is not None:
            values = self._map_values(values)
        committed = self._cache.offset
        self._cache.offset = committed + self._skip
        try:
            return self._cache.update_and_fetch(keys, values)
        finally:
            self._cache.offset = committed


def commit(caches: Sequence[Any], path: Sequence[int]) -> None:
    """Move the accepted rows to the front of the uncommitted ones and advance the offset.

    Args:
        caches: mlx-lm ``KVCache`` objects that hold the same uncommitted rows.
        path: indices of the accepted rows among the uncommitted ones, root first.
    """
    in_place = list(path) == list(range(len(path)))
    rows = None if in_place else mx.array(path)
    for cache in caches:
        start, end = cache.offset, cache.offset + len(path)
        if rows is not None:
            cache.keys[..., start:end, :] = cache.keys[..., start + rows, :]
            cache.values[..., start:end, :] = cache.values[..., start + rows, :]
        cache.offset = end
