"""Rotary embeddings on the CPU: sines and cosines once a pass instead of twice in every layer.

There ``mx.fast.rope`` is some twenty small operations, nearly all of them for the angles, which are
the same for queries and keys and in every layer whose rope has the same settings. The results here
are bit for bit the same. On a GPU it is one kernel, and these tables are not used.
"""

from collections.abc import Callable, Hashable, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.rope_utils import Llama3RoPE

from .. import device

RopeAt = Callable[[nn.Module, mx.array, mx.array | int], mx.array]
"""``(rope, x, offset)`` -> x (sequences, heads, rows, d) rotated at consecutive positions from an
``offset`` on, or at one for each row (rows,)."""


class Rotations:
    """The angles of one pass, for all layers whose ropes have the same settings.

    Args:
        rope: one of these ropes; it rotates all elements of a head, in pairs.
        rope_at: function that makes the tables.
    """

    def __init__(self, rope: nn.Module, rope_at: RopeAt):
        self._rope, self._rope_at = rope, rope_at
        self._pairs_lie_together = rope.traditional
        half = rope.dims // 2
        self._shape = (half, 2) if rope.traditional else (2, half)
        unit = [1.0, 0.0] * half if rope.traditional else [1.0] * half + [0.0] * half
        self._unit = mx.array(unit)
        self._cos_sin: tuple[mx.array, mx.array] | None = None

    def begin(self) -> None:
        """Begin a pass, whose rows have positions of their own."""
        self._cos_sin = None

    def rotate(self, x: mx.array, offset: mx.array | int) -> mx.array:
        """Rotate x (1, heads, rows, d), float32; see ``RopeAt``.

        The rows of all calls of a pass have the same positions.
        """
        cos, sin = self._angles(x.shape[2], offset)
        pairs = x.reshape(*x.shape[:-1], *self._shape)
        swapped = pairs[..., ::-1] if self._pairs_lie_together else pairs[..., ::-1, :]
        return (pairs * cos + swapped * sin).reshape(x.shape)

    def _angles(self, count: int, offset: mx.array | int) -> tuple[mx.array, mx.array]:
        """Return the factors of the pairs and of the swapped pairs; the latter hold the sign."""
        if self._cos_sin is None:
            units = mx.broadcast_to(self._unit, (1, 1, count, self._unit.size))
            turned = self._rope_at(self._rope, units, offset).reshape(count, *self._shape)
            axis = -1 if self._pairs_lie_together else -2
            cos, sin = mx.split(turned, 2, axis=axis)
            self._cos_sin = cos, mx.concatenate([-sin, sin], axis=axis)
        return self._cos_sin


def shared_rotations(ropes: Sequence[nn.Module], rope_at: RopeAt) -> list[Rotations | None]:
    """Return rotations for ropes, one for all of equal settings; ``None``: the rope itself."""
    if device.backend() != "cpu":
        return [None] * len(ropes)
    known: dict[Hashable, Rotations] = {}
    return [
        known.setdefault(_settings(rope), Rotations(rope, rope_at))
        if type(rope) in (nn.RoPE, Llama3RoPE)
        else None
        for rope in ropes
    ]


def _settings(rope: nn.Module) -> Hashable:
    arrays = [np.array(array).tobytes() for array in rope.values()]  # Llama 3's frequencies
    plain = [getattr(rope, name, None) for name in ("dims", "traditional", "base", "scale")]
    return type(rope), *plain, *arrays
