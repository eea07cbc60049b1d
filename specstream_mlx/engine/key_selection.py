"""Streams that attend to their main row's likeliest keys alone (arXiv 2402.11131, App. H.1).

A layer takes its mask before its queries are known, so each has a mask of its own, which is
narrowed in place once the layer's keys are there.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .kv import CommittedRows, Fetched, SideBySideKVCache, UncommittedRows
from .rows import Rows, at


class QueryCapturingRope:
    """An MSA layer's rotary embedding that hands the layer's queries to its KV rows.

    Layers rotate queries first, then keys. ``ask`` takes the next call's queries and the softcap.
    """

    def __init__(self, attention: nn.Module):
        self._rope, self._scale = attention["rope"], getattr(attention, "scale", None)
        self._softcap = getattr(attention, "attn_logit_softcapping", None)
        self.ask: Callable[[mx.array, float | None], None] | None = None

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        rotated = self._rope(x, *args, **kwargs)
        ask, self.ask = self.ask, None
        if ask is not None:
            scale = x.shape[-1] ** -0.5 if self._scale is None else self._scale
            ask(rotated * scale, self._softcap)
        return rotated


class SelectingRows(UncommittedRows):
    """The new rows of a layer in which streams select keys: ``main`` rows before streams.

    Each of ``num_streams`` streams at a node of ``stream_nodes`` attends to ``count`` main rows.
    """

    def __init__(
        self,
        cache: CommittedRows,
        rows: Rows,
        map_values: Callable[[mx.array], mx.array] | None,
        count: int,
        num_streams: int,
        main: int,
        stream_nodes: mx.array | None,
    ):
        super().__init__(cache, rows, map_values)
        self._count, self._num_streams, self._first = count, num_streams, main
        self._stream_nodes = stream_nodes
        if isinstance(cache, SideBySideKVCache):
            assert rows.sees is not None  # as wherever there are streams
            most = cache.columns(rows.sees.shape[-1])
            self._main: mx.array | int = (cache.offset + main)[:, None, None, None]
        else:
            self._main = committed = cache.offset + main
            most = min(committed, getattr(cache, "window", committed))
        self._selects = count < most  # else streams see what their main rows see

    def ask(self, queries: mx.array, softcap: float | None) -> None:
        self._queries, self._softcap = queries, softcap

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        mask = super().make_mask(count, return_array, window_size)
        if not self._selects:
            return mask
        assert isinstance(mask, mx.array)  # as wherever there are streams
        self._mask = mx.array(mask)  # a copy, since other layers select other keys
        return self._mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Fetched, Fetched]:
        all_keys, all_values = super().update_and_fetch(keys, values)
        if self._selects:
            self._narrow(all_keys)
        return all_keys, all_values

    def _narrow(self, keys: Fetched) -> None:
        mask, first, gamma = self._mask, self._first, self._num_streams
        is_main = mx.arange(mask.shape[-1]) < self._main
        seen = mask[..., first::gamma, :] & is_main
        queries = self._queries[:, :, :first]
        if self._stream_nodes is not None:
            queries = at(queries.swapaxes(1, 2), self._stream_nodes).swapaxes(1, 2)
        weights = self._weights(queries, keys, seen).reshape(seen.shape)
        least = mx.topk(weights, min(self._count, weights.shape[-1])).min(-1, keepdims=True)
        stays = (weights >= least) | ~is_main
        mask[..., first:, :] &= mx.repeat(stays, gamma, axis=-2)

    def _weights(self, queries: mx.array, keys: Fetched, seen: mx.array) -> mx.array:
        sequences, heads, rows, size = queries.shape
        kv_heads = (keys if isinstance(keys, mx.array) else keys[0]).shape[1]
        grouped = queries.reshape(sequences, kv_heads, -1, size)
        if isinstance(keys, mx.array):
            scores = grouped @ keys.swapaxes(2, 3)
        else:
            group_size, bits = self.group_size, self.bits
            scores = mx.quantized_matmul(grouped, *keys, group_size=group_size, bits=bits)
        return summed_weights(scores.reshape(sequences, heads, rows, -1), seen, self._softcap)


def summed_weights(scores: mx.array, seen: mx.array, softcap: float | None) -> mx.array:
    """Sum weights (sequences, 1, rows, columns) over the heads; keys that are not seen get -1."""
    scores = scores.astype(mx.float32)
    if softcap is not None:
        scores = mx.tanh(scores / softcap) * softcap
    weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1).sum(axis=1, keepdims=True)
    return mx.where(seen, weights, -1.0)
