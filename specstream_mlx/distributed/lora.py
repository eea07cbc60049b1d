"""Linear layers divided among the ranks that take LoRA, which mlx's own do not.

Divided by columns, a layer's B is divided with it. Divided by rows, A is divided, and what LoRA
adds is added before the one reduction.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.nn.layers.distributed import (
    AllToShardedLinear,
    QuantizedAllToShardedLinear,
    QuantizedShardedToAllLinear,
    ShardedToAllLinear,
)
from mlx.utils import tree_unflatten
from mlx_lm.tuner.lora import LoRALinear

from ..hardware.cpu import exchanged


class Sharded(nn.Module):
    """A divided linear layer.

    Attributes:
        DIVIDED: the LoRA tensor that is divided as the weight is, and along which of its axes.
    """

    DIVIDED: tuple[str, int]
    LORA: type[LoRALinear] = LoRALinear  # the LoRA layer around such a layer

    @property
    def own_shape(self) -> tuple[int, int]:
        """(out, in) of this rank's part."""
        rows, columns = self["weight"].shape
        return rows, columns * 32 // self.bits if "scales" in self else columns

    @property
    def whole_shape(self) -> tuple[int, int]:
        """(out, in) of the layer that is divided."""
        rows, columns = self.own_shape
        size = self.group.size()
        return (rows * size, columns) if self.DIVIDED[0] == "lora_b" else (rows, columns * size)

    def part_of(self, kind: str, tensor: mx.array) -> mx.array:
        """Return this rank's part of ``lora_a`` (in, r) or ``lora_b`` (r, out)."""
        divided, axis = self.DIVIDED
        if kind != divided:
            return tensor
        return mx.split(tensor, self.group.size(), axis=axis)[self.group.rank()]

    def to_lora(self, r: int, scale: float, dropout: float) -> LoRALinear:
        """Make a LoRA layer around this one; mlx_lm calls it."""
        out, columns = self.own_shape
        layer = self.LORA(columns, out, r, dropout, scale)
        layer["linear"] = self
        return layer


class Columns(Sharded, AllToShardedLinear):
    """A dense layer divided by columns of its output."""

    DIVIDED = "lora_b", 1


class QuantizedColumns(Sharded, QuantizedAllToShardedLinear):
    """A quantized layer divided by columns of its output."""

    DIVIDED = "lora_b", 1


class RowsLoRALinear(LoRALinear):
    """A LoRA layer around one that is divided by rows; it has no dropout."""

    def __call__(self, x: mx.array) -> mx.array:
        linear = self.linear
        summand = mx.addmm(linear.summand(x), x @ self.lora_a, self.lora_b, alpha=self.scale)
        whole = mx.distributed.all_sum(summand, group=linear.group)
        return whole + linear["bias"] if "bias" in linear else whole


class Rows(Sharded, ShardedToAllLinear):
    """A dense layer divided by rows of its input."""

    DIVIDED, LORA = ("lora_a", 0), RowsLoRALinear

    def summand(self, x: mx.array) -> mx.array:
        """Return this rank's summand of the output, without bias."""
        return x @ self["weight"].T


class QuantizedRows(Sharded, QuantizedShardedToAllLinear):
    """A quantized layer divided by rows of its input."""

    DIVIDED, LORA = ("lora_a", 0), RowsLoRALinear

    def summand(self, x: mx.array) -> mx.array:
        """Return this rank's summand of the output, without bias."""
        return mx.quantized_matmul(
            x,
            self["weight"],
            scales=self["scales"],
            biases=self.get("biases"),
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )


_TAKING_LORA: dict[type[nn.Module], type[nn.Module]] = {
    AllToShardedLinear: Columns,
    QuantizedAllToShardedLinear: QuantizedColumns,
    ShardedToAllLinear: Rows,
    QuantizedShardedToAllLinear: QuantizedRows,
}


def take_lora(model: nn.Module) -> None:
    """Let the divided layers of a model take LoRA; it is changed in place."""
    others: list[tuple[str, Any]] = [
        (name, exchanged(module, _TAKING_LORA[type(module)]))
        for name, module in model.named_modules()
        if type(module) in _TAKING_LORA
    ]
    model.update_modules(tree_unflatten(others))
