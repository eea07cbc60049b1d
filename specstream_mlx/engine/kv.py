"""KV caches in which a tree's rows stay uncommitted until it is known which are accepted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from ..models.architectures import layer_windows
from .rows import Rows


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


class StackedKVCache(KVCache):
    """One layer's rows of several sequences, each from the first column on.

    Other than mlx_lm's ``BatchKVCache``, which pads on the left, a sequence can go back by itself.

    Args:
        caches: of the sequences, one each.
        room: the most rows that one step writes behind the committed ones.

    Attributes:
        offset: (sequences,) committed rows.
        columns: of the arrays that ``update_and_fetch`` returns; what lies behind a sequence's
            rows there means nothing.
    """

    def __init__(self, caches: Sequence[KVCache], room: int):
        super().__init__()
        self._room = room
        self.commit([cache.offset for cache in caches])
        filled = next((cache for cache in caches if not cache.empty()), None)
        if filled is None:
            return
        self._reserve(len(caches), filled.keys, filled.values)
        for number, cache in enumerate(caches):
            if not cache.empty():
                rows = slice(number, number + 1), slice(None), slice(cache.offset)
                self.keys[rows], self.values[rows] = cache.keys_and_values()

    @property
    def columns(self) -> int:
        """Columns of the arrays that ``update_and_fetch`` returns."""
        return self._longest + self._room

    def commit(self, lengths: Sequence[int]) -> None:
        """Set how many rows of each sequence are committed."""
        self.offset, self._longest = mx.array(lengths, mx.int32), max(lengths)

    def keep(self, sequences: Sequence[int]) -> None:
        """Drop all other sequences; ``commit`` must follow."""
        kept = mx.array(sequences)
        self.keys, self.values = self.keys[kept], self.values[kept]

    def extract(self, sequence: int, rows: int) -> KVCache:
        """The first ``rows`` rows of one sequence, as a cache of its own."""
        cache, part = KVCache(), (slice(sequence, sequence + 1), slice(None), slice(rows))
        cache.state = self.keys[part], self.values[part], rows
        return cache

    def _reserve(self, sequences: int, keys: mx.array, values: mx.array) -> None:
        """Grow to ``columns``, in whole steps; heads and sizes are those of the arrays."""
        count = -(-self.columns // self.step) * self.step
        for name, like in (("keys", keys), ("values", values)):
            held = getattr(self, name)
            new = count - (0 if held is None else held.shape[2])
            if new > 0:
                zeros = mx.zeros((sequences, like.shape[1], new, like.shape[3]), like.dtype)
                grown = zeros if held is None else mx.concatenate([held, zeros], axis=2)
                setattr(self, name, grown)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write new rows behind each sequence's own.

        Args:
            keys, values: (sequences, kv_heads, rows, head_dim).

        Returns:
            (sequences, kv_heads, columns, head_dim) of both.
        """
        self._reserve(keys.shape[0], keys, values)
        columns = (self.offset[:, None] + mx.arange(keys.shape[2]))[:, None, :, None]
        for name, new in (("keys", keys), ("values", values)):
            where = mx.broadcast_to(columns, new.shape)
            setattr(self, name, mx.put_along_axis(getattr(self, name), where, new, axis=2))
        return self.keys[..., : self.columns, :], self.values[..., : self.columns, :]


def make_caches(model: nn.Module, config: Mapping[str, Any]) -> list[KVCache]:
    """Make an empty KV cache for each layer of a model, of a kind that can drop rejected drafts.

    Args:
        model: an mlx-lm model.
        config: its ``config.json``.
    """
    return [
        KVCache() if window is None else WindowedKVCache(window)
        for window in layer_windows(config, model)
    ]


def window_left_out(model: nn.Module, config: Mapping[str, Any]) -> int | None:
    """The narrowest sliding window of the model that mlx_lm leaves out; ``None``: there is none.

    Args:
        model: an mlx-lm model.
        config: its ``config.json``.
    """
    pairs = zip(layer_windows(config, model), make_prompt_cache(model), strict=True)
    left_out = [w for w, own in pairs if w is not None and not hasattr(own, "max_size")]
    return min(left_out, default=None)


class LayerCache(Protocol):
    """What a layer asks of its KV cache, or of what stands for one in a pass.

    Where streams select keys it also has ``ask``, see ``key_selection.AskingRows``.
    """

    @property
    def offset(self) -> mx.array | int:
        """Position of the first new row, or (.., rows) positions of all."""

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Make the mask of ``count`` new rows, in one of mlx-lm's forms.

        Args:
            count: new rows.
            return_array: never ``"causal"``.
            window_size: what a model asks for a layer that has no window of its own.
        """

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Take in the new rows' keys and values, and return those of all rows that may be seen.

        Args:
            keys, values: (sequences, kv_heads, rows, head_dim).
        """


class UncommittedRows:
    """Stands in for one layer's KV cache during a pass over new rows.

    The new keys and values go behind the committed rows of the underlying cache, whose ``offset``
    stays where it is, so the next pass overwrites whatever was not committed. An mlx-lm model
    reads ``offset`` as the rows' positions and asks ``make_mask`` for its mask.

    Args:
        cache: an mlx-lm ``KVCache`` or ``QuantizedKVCache``, or a ``StackedKVCache``.
        rows: positions and visibility of the new rows.
        skip: rows behind the committed ones that an earlier pass of this step wrote and that
            stay visible as ``rows.sees`` says.
        map_values: applied to the new values (sequences, kv_heads, rows, head_dim).
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
        """The mask of ``count`` new rows; see ``rows.Rows``.

        The layer's own window counts; ``window_size`` is what a model asks for one without.
        """
        if isinstance(self._cache, StackedKVCache):
            return self._rows.stacked_mask(self._cache.offset, self._cache.columns)
        window = getattr(self._cache, "window", window_size)
        return self._rows.attention_mask(count, self._cache.offset, window, return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write the new rows behind the committed ones.

        Args:
            keys, values: (sequences, kv_heads, rows, head_dim).

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
