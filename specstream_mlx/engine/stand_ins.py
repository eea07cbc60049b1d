"""What takes the place of a model's parts for the length of one pass."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..hardware.cpu.rotations import Rotations, rope_at


class PositionedRope(nn.Module):
    """A layer's rotary embedding that also takes one absolute position per row: (rows,), or
    (sequences, rows).

    Args:
        rope: the layer's.
        rotations: what it shares with other layers, if anything.
    """

    def __init__(self, rope: nn.Module, rotations: Rotations | None):
        super().__init__()
        self._rope, self._rotations = rope, rotations

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        one_sequence = isinstance(offset, int) or offset.ndim == 1
        whole = x.dtype == mx.float32 and x.shape[-1] == getattr(self._rope, "dims", None)
        if self._rotations and one_sequence and whole:
            return self._rotations.rotate(x, offset)
        return rope_at(self._rope, x, offset)


class Through:
    """Stands in for ``layer``: ``function(hidden) -> hidden``, other attributes the layer's."""

    def __init__(self, layer: nn.Module, function: Callable[[mx.array], mx.array]):
        self._layer, self._function = layer, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return self._function(hidden)
