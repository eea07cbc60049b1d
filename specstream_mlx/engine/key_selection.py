"""Streams that attend to their main row's likeliest keys alone (arXiv 2402.11131, App. H.1).

``stream_keys`` of ``StreamConfig`` defines the selection. A layer asks for its mask before its
queries are known, so a pass in which streams select keys gives every layer a mask of its own and
narrows it in place once the layer's keys are there. Deferred streams share one main row: for them
the selected rows are gathered instead, and attention reads no others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache

from ..models.streams import Prefix
from .kv import AskedCache, CommittedRows, Fetched, SideBySideKVCache, UncommittedRows
from .rows import Rows, at


class AskingRows(UncommittedRows, AskedCache):
    """The new rows of a layer, with the queries that the layer tells them.

    Attributes:
        queries: (sequences, heads, rows, head_dim), rotated and scaled; set by ``ask``.
    """

    queries: mx.array

    def ask(self, queries: mx.array, softcap: float | None) -> None:
        """Keep the layer's queries; see ``AskedCache``."""
        self.queries, self._softcap = queries, softcap


@dataclass(frozen=True, eq=False)
class KeySelection:
    """The main rows that the streams of a pass select keys among.

    Attributes:
        count: number of main rows that a stream attends to, ``stream_keys``.
        num_streams: number of streams beside each main row that has some.
        main: number of main rows behind the committed ones, from this pass or the step's first.
        beside: main rows of this pass that have streams, by sequence; ``None``: all.
        last: (sequences, 1) the main row of the step's first pass that deferred streams belong to;
            ``None``: the main rows are in this pass.
    """

    count: int
    num_streams: int
    main: int
    beside: Sequence[Sequence[int]] | None = None
    last: mx.array | None = None


class SelectingRows(AskingRows):
    """The new rows of a layer in which streams select keys: main rows, if any, before streams.

    Args:
        cache, rows, skip, map_values, prefix: see ``UncommittedRows``.
        selection: the main rows to select among.
        asked: (sequences, heads, 1, head_dim) queries of the main rows ``selection.last``.
    """

    def __init__(
        self,
        cache: CommittedRows,
        rows: Rows,
        skip: int,
        map_values: Callable[[mx.array], mx.array] | None,
        prefix: Prefix | None,
        selection: KeySelection,
        asked: mx.array | None,
    ):
        super().__init__(cache, rows, skip, map_values, prefix)
        self._selection, self._asked = selection, asked
        several = isinstance(cache, SideBySideKVCache)
        main: mx.array | int = cache.offset + selection.main
        self._first = selection.main if asked is None else 0
        self._gathers = not (asked is None or several or isinstance(cache, QuantizedKVCache))
        if isinstance(cache, SideBySideKVCache):
            assert rows.sees is not None  # as wherever there are streams
            most = cache.columns(rows.sees.shape[-1])
        else:
            assert isinstance(main, int)
            most = min(main, getattr(cache, "window", main))
        self._selects = selection.count < most  # else streams see what their main rows see
        self._main = main if isinstance(main, int) else main[:, None, None, None]

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """See ``UncommittedRows``; the array is narrowed by ``update_and_fetch``."""
        mask = super().make_mask(count, return_array, window_size)
        if not self._selects:
            return mask
        assert isinstance(mask, mx.array)
        if self._gathers:
            assert isinstance(self._main, int)
            self._seen, behind = mx.split(mask, [self._main], axis=1)
            chosen = mx.ones((count, self._selection.count), mx.bool_)
            self._mask = mx.concatenate([chosen, behind], axis=1)
        else:
            self._mask = mx.array(mask)  # a copy, since other layers select other keys
        return self._mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Fetched, Fetched]:
        """See ``UncommittedRows``; deferred streams get the selected rows and their own."""
        all_keys, all_values = super().update_and_fetch(keys, values)
        if self._selects and self._gathers:
            return self._gathered(all_keys, all_values)
        if self._selects:
            self._narrow(all_keys)
        return all_keys, all_values

    def _narrow(self, keys: Fetched) -> None:
        """Hide the main rows that are not selected from the streams."""
        selection, mask, first = self._selection, self._mask, self._first
        is_main = mx.arange(mask.shape[-1]) < self._main
        seen = mask[..., first :: selection.num_streams, :] & is_main
        queries = self._asked
        if queries is None:
            queries = self.queries[:, :, : selection.main]
            if selection.beside is not None:
                queries = _asked(queries, mx.array([list(nodes) for nodes in selection.beside]))
        weights = self._weights(queries, keys, seen).reshape(seen.shape)
        least = mx.topk(weights, min(selection.count, weights.shape[-1])).min(-1, keepdims=True)
        stays = (weights >= least) | ~is_main
        mask[..., first:, :] &= mx.repeat(stays, selection.num_streams, axis=-2)

    def _gathered(self, keys: Fetched, values: Fetched) -> tuple[mx.array, mx.array]:
        """Gather keys and values of the selected rows and, behind them, the streams' own."""
        count, seen = self._selection.count, self._seen[:1]
        assert isinstance(keys, mx.array) and isinstance(values, mx.array)  # not quantized
        assert isinstance(self._main, int) and self._asked is not None  # deferred, of one text
        weights = self._weights(self._asked, keys[:, :, : self._main], seen)
        # Of rows that weigh the same at the border some are left out: the number is fixed here.
        best = mx.argpartition(-weights.reshape(-1), kth=count - 1)[:count]
        self._mask[:, :count] = mx.take(seen, best, axis=1)  # it may see fewer than that
        own = mx.arange(self._main, keys.shape[2], dtype=best.dtype)
        rows = mx.concatenate([best, own])
        return mx.take(keys, rows, axis=2), mx.take(values, rows, axis=2)

    def _weights(self, queries: mx.array, keys: Fetched, seen: mx.array) -> mx.array:
        """Return the main rows' weights of keys; see ``summed_weights``.

        Args:
            queries: (sequences, heads, rows, head_dim) of the main rows, scaled.
            keys: the cache's keys, of all columns.
            seen: (rows, columns) or (sequences, 1, rows, columns) bool, columns that a row sees.
        """
        sequences, heads, rows, size = queries.shape
        kv_heads = (keys if isinstance(keys, mx.array) else keys[0]).shape[1]
        grouped = queries.reshape(sequences, kv_heads, -1, size)
        if isinstance(keys, mx.array):
            scores = grouped @ keys.swapaxes(2, 3)
        else:
            group_size, bits = self.group_size, self.bits
            scores = mx.quantized_matmul(grouped, *keys, group_size=group_size, bits=bits)
        return summed_weights(scores.reshape(sequences, heads, rows, -1), seen, self._softcap)


def asking_rows(
    caches: Sequence[CommittedRows],
    rows: Rows,
    skip: int,
    map_values: Callable[[mx.array], mx.array] | None,
    prefixes: Sequence[Prefix | None],
    selection: KeySelection | None,
    earlier: Sequence[UncommittedRows],
) -> list[UncommittedRows]:
    """Make the stand-ins for the caches of layers in which streams select keys.

    Args:
        caches, rows, skip, map_values, prefixes: see ``UncommittedRows``; a cache and a prefix per
            layer.
        selection: the main rows to select among; ``None``: the pass has no streams.
        earlier: the layers' rows of the step's first pass, with their queries.
    """
    if selection is None:
        return [AskingRows(cache, rows, skip, map_values) for cache in caches]
    asked: list[mx.array | None] = [None] * len(caches)
    if selection.last is not None:
        first = [layer for layer in earlier if isinstance(layer, AskingRows)]
        asked = [_asked(layer.queries, selection.last) for layer in first]
    return [
        SelectingRows(cache, rows, skip, map_values, prefix, selection, own)
        for cache, prefix, own in zip(caches, prefixes, asked, strict=True)
    ]


def _asked(queries: mx.array, rows: mx.array) -> mx.array:
    """Select the queries (sequences, heads, m, head_dim) of some rows (sequences, m)."""
    return at(queries.swapaxes(1, 2), rows).swapaxes(1, 2)


def summed_weights(scores: mx.array, seen: mx.array, softcap: float | None) -> mx.array:
    """Sum the attention weights of rows over the heads; keys that are not seen get -1.

    Args:
        scores: (sequences, heads, rows, columns) attention scores of a layer.
        seen: bool, columns that a row sees; of a shape that broadcasts with ``scores``.
        softcap: cap of the scores; ``None``: none.

    Returns:
        (sequences, 1, rows, columns) float32.
    """
    scores = scores.astype(mx.float32)
    if softcap is not None:
        scores = mx.tanh(scores / softcap) * softcap
    weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1).sum(axis=1, keepdims=True)
    return mx.where(seen, weights, -1.0)
