"""Stand-ins for layers and their parts, in ``BorrowedModel``'s copies of a model.

Each calls the module that it stands for, and adds one thing: it keeps what comes in, gives what it
is told, reports, or takes a position for every row.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..hardware.cpu.rotations import Rotations
from ..models.streams import Streams
from .kv import AskedCache

Observer = Callable[[int, mx.array, mx.array], None]
"""Function of a layer's number, its input and its output."""


class StandIn:
    """A stand-in for a layer, with the layer's attributes, some of which models read."""

    def __init__(self, layer: "nn.Module | StandIn"):
        self._layer: Any = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


class Kept(StandIn):
    """A stand-in for the first MSA layer that keeps its input."""

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        self._hidden = hidden
        return hidden

    def take(self) -> mx.array:
        """Return the hidden states that came in, and let go of them."""
        hidden = self._hidden
        del self._hidden
        return hidden


class Given(StandIn):
    """A stand-in for all layers that returns ``hidden``."""

    hidden: mx.array

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        return self.hidden


class KeptNorm(StandIn):
    """A stand-in for the final norm that keeps its output.

    Args:
        norm: the norm.
        keep: called with the output.
    """

    def __init__(self, norm: nn.Module, keep: Callable[[mx.array], None]):
        super().__init__(norm)
        self._keep = keep

    def __call__(self, hidden: mx.array) -> mx.array:
        output = self._layer(hidden)
        self._keep(output)
        return output


class WithOwnMask(StandIn):
    """A stand-in for a layer that takes its mask from its own cache."""

    def __init__(self, layer: nn.Module, mask: Callable[[mx.array, Any], Any]):
        super().__init__(layer)
        self._mask = mask

    def __call__(self, hidden: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        return self._layer(hidden, self._mask(hidden, cache), cache=cache)


class Observed(StandIn):
    """A stand-in for a layer that reports its input and output."""

    def __init__(self, number: int, layer: nn.Module | StandIn, observe: Observer):
        super().__init__(layer)
        self._number, self._observe = number, observe

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        output = self._layer(hidden, *args, **kwargs)
        self._observe(self._number, hidden, output)
        return output


class PositionedRope:
    """A layer's rotary embedding that also takes one absolute position per row.

    Args:
        rope: the layer's rope.
        rotations: tables shared with other layers, if any.
    """

    def __init__(self, rope: nn.Module, rotations: Rotations | None):
        self._rope, self._rotations = rope, rotations

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        one_sequence = isinstance(offset, int) or offset.ndim == 1
        whole = x.dtype == mx.float32 and x.shape[-1] == getattr(self._rope, "dims", None)
        if self._rotations and one_sequence and whole:
            return self._rotations.rotate(x, offset)
        return rope_at(self._rope, x, offset)


def rope_at(rope: nn.Module, x: mx.array, offset: mx.array | int) -> mx.array:
    """Rotate rows by ``rope``, at consecutive positions or at one for each row.

    Args:
        rope: a layer's rope.
        x: (sequences, heads, rows, d).
        offset: the first position; or positions (rows,) of one sequence, or (sequences, rows).
    """
    if isinstance(offset, int):
        return rope(x, offset=offset)
    # mlx takes one offset per batch row: make every row a batch of its own.
    if offset.ndim == 2:
        sequences, heads, rows, size = x.shape
        single = x.swapaxes(1, 2).reshape(sequences * rows, heads, 1, size)
        rotated = rope(single, offset=offset.reshape(-1))
        return rotated.reshape(sequences, rows, heads, size).swapaxes(1, 2)
    return rope(x.swapaxes(0, 2), offset=offset).swapaxes(0, 2)


class AskingRope:
    """A stand-in for an MSA layer's rotary embedding that tells the layer's rows its queries.

    Layers rotate their queries first, then their keys.

    Args:
        attention: the layer's attention.

    Attributes:
        rows: stand-in for the cache in the next call; it is told the queries.
    """

    def __init__(self, attention: nn.Module):
        self._rope, self._scale = attention["rope"], getattr(attention, "scale", None)
        self._softcap = getattr(attention, "attn_logit_softcapping", None)
        self.rows: AskedCache | None = None

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        rotated = self._rope(x, *args, **kwargs)
        rows, self.rows = self.rows, None
        if rows is not None:
            scale = x.shape[-1] ** -0.5 if self._scale is None else self._scale
            rows.ask(rotated * scale, self._softcap)
        return rotated


class StreamMLP:
    """An MSA layer's MLP; stream rows pass through their adapter instead, or through both.

    Args:
        mlp: the layer's MLP.
        streams: the streams, which have the adapters.
        number: the layer's number.

    Attributes:
        main_rows: number of main rows in the next call; they come first.
    """

    def __init__(self, mlp: nn.Module, streams: Streams, number: int):
        self._mlp, self._streams, self._number = mlp, streams, number
        self._beside = streams.config.stream_mlp == "base+adapter"
        self.main_rows = 0

    def __call__(self, x: mx.array) -> mx.array:
        count = self.main_rows
        if x.shape[1] == count:
            return self._mlp(x)
        streams = self._streams.stream_adapter(self._number, x[:, count:])
        if self._beside:  # one product over all rows: its weights are read once
            through = self._mlp(x)
            main, streams = through[:, :count], through[:, count:] + streams
        elif count:
            main = self._mlp(x[:, :count])
        return mx.concatenate([main, streams], axis=1) if count else streams
