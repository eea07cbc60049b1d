"""What takes the place of a model's parts for the length of one pass."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn


class PositionedRope(nn.Module):
    """A layer's rotary embedding that also takes one absolute position per row: (rows,), or
    (sequences, rows)."""

    def __init__(self, rope: nn.Module):
        super().__init__()
        self._rope = rope

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        if isinstance(offset, int):
            return self._rope(x, offset=offset)
        # mlx takes one offset per batch row: make every row a batch of its own.
        if offset.ndim == 2:
            sequences, heads, rows, size = x.shape
            single = x.swapaxes(1, 2).reshape(sequences * rows, heads, 1, size)
            rotated = self._rope(single, offset=offset.reshape(-1))
            return rotated.reshape(sequences, rows, heads, size).swapaxes(1, 2)
        return self._rope(x.swapaxes(0, 2), offset=offset).swapaxes(0, 2)


class Through:
    """Stands in for ``layer``: ``function(hidden) -> hidden``, other attributes the layer's."""

    def __init__(self, layer: nn.Module, function: Callable[[mx.array], mx.array]):
        self._layer, self._function = layer, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return self._function(hidden)
