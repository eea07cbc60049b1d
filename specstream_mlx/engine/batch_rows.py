"""KV caches of several sequences of different lengths in one array per layer, and their masks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
from mlx_lm.models.cache import KVCache


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
        """See the class."""
        return self._longest + self._room

    def commit(self, lengths: Sequence[int]) -> None:
        """Set how many rows of each sequence are committed."""
        self.offset, self._longest = mx.array(lengths, mx.int32), max(lengths)

    def keep(self, sequences: Sequence[int]) -> None:
        """Drop all other sequences; ``commit`` must follow."""
        kept = mx.array(sequences)
        self.keys, self.values = self.keys[kept], self.values[kept]

    def make_mask(self, *_: object, **__: object) -> None:
        """None: passes over layers bring a mask of their own, the head alone needs none."""

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


@dataclass(frozen=True)
class BatchRows:
    """The new rows of one pass; what ``msa.Rows`` is to a single sequence.

    Attributes:
        positions: (sequences, rows) absolute positions.
        sees: (sequences or 1, rows, behind) bool: which rows behind the committed ones each new row
            attends to; the new rows are the last of these. All see the committed ones.
        columns: of the layers' arrays, see ``StackedKVCache``.
    """

    positions: mx.array
    sees: mx.array
    columns: int
    _masks: list[mx.array] = field(default_factory=list, compare=False)

    def attention_mask(
        self, count: int, prefix: mx.array, window: None = None, as_array: bool = True
    ) -> mx.array:
        """(sequences, 1, rows, columns) bool, the same array for every layer of a pass.

        Args:
            count: new rows.
            prefix: (sequences,) committed rows.
            window, as_array: as in ``msa.Rows``; there is no window, and always an array.
        """
        if not self._masks:
            behind = mx.arange(self.columns) - prefix[:, None]
            shape = prefix.size, count, self.columns
            index = mx.clip(behind, 0, self.sees.shape[-1] - 1)[:, None]
            sees = mx.broadcast_to(self.sees, (*shape[:2], self.sees.shape[-1]))
            seen = mx.take_along_axis(sees, mx.broadcast_to(index, shape), axis=-1)
            inside = (behind < self.sees.shape[-1])[:, None]
            self._masks.append(((behind < 0)[:, None] | (seen & inside))[:, None])
        return self._masks[0]
