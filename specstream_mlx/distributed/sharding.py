"""A model divided among the ranks by mlx-lm's own ``shard``, and LoRA on its divided layers.

Divided by columns, a layer's B is divided with it. Divided by rows, A is divided, and what LoRA
adds is added before the one reduction. mlx's own divided layers take no LoRA.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.nn.layers.distributed import (
    AllToShardedLinear,
    QuantizedAllToShardedLinear,
    QuantizedShardedToAllLinear,
    ShardedToAllLinear,
)
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

from ..errors import UserError
from ..hardware.cpu import Kinds, exchange
from .ranks import Ranks


def check_divisible(model: nn.Module, config: Mapping[str, Any], ranks: Ranks) -> None:
    """Check that an mlx-lm model, of a ``config.json``, can be divided among the ranks."""
    name, size = config["model_type"], ranks.size
    if not hasattr(model, "shard"):
        raise UserError(
            f"model_type is {name!r}, which mlx-lm cannot shard, expected one process instead of "
            f"{size}"
        )
    heads = config["num_attention_heads"]
    for field, count in (
        ("num_attention_heads", heads),
        ("num_key_value_heads", config.get("num_key_value_heads") or heads),
    ):
        if count % size:
            raise UserError(f"{field} is {count}, expected one that {size} processes divide")


def shard(model: nn.Module, ranks: Ranks) -> None:
    """Reduce a model that is not evaluated yet to this rank's part of every layer, in place."""
    try:
        model.shard(ranks.group)
    except ValueError as error:
        raise UserError(
            f"the model's matrices cannot be divided among {ranks.size} processes: "
            f"{' '.join(str(error).split())}"
        ) from None
    exchange(model, _TAKING_LORA)
    for tensor in dict(tree_flatten(model.parameters())).values():
        mx.eval(tensor)  # by itself, else many whole matrices would be there at a time


# Divided layers ---------------------------------------------------------------------------------


class Sharded(nn.Module):
    """A divided linear layer."""

    DIVIDED: tuple[str, int]  # the LoRA tensor that is divided as the weight is, and its axis
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


class ColumnShardedLinear(Sharded, AllToShardedLinear):
    DIVIDED = "lora_b", 1


class QuantizedColumnShardedLinear(Sharded, QuantizedAllToShardedLinear):
    DIVIDED = "lora_b", 1


class RowShardedLoRALinear(LoRALinear):
    """A LoRA layer around one that is divided by rows; it has no dropout."""

    def __call__(self, x: mx.array) -> mx.array:
        linear = self.linear
        summand = mx.addmm(linear.summand(x), x @ self.lora_a, self.lora_b, alpha=self.scale)
        whole = mx.distributed.all_sum(summand, group=linear.group)
        return whole + linear["bias"] if "bias" in linear else whole


class RowShardedLinear(Sharded, ShardedToAllLinear):
    DIVIDED, LORA = ("lora_a", 0), RowShardedLoRALinear

    def summand(self, x: mx.array) -> mx.array:
        """Return this rank's summand of the output, without bias."""
        return x @ self["weight"].T


class QuantizedRowShardedLinear(Sharded, QuantizedShardedToAllLinear):
    DIVIDED, LORA = ("lora_a", 0), RowShardedLoRALinear

    def summand(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x,
            self["weight"],
            scales=self["scales"],
            biases=self.get("biases"),
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )


_TAKING_LORA: Kinds = {
    AllToShardedLinear: ColumnShardedLinear,
    QuantizedAllToShardedLinear: QuantizedColumnShardedLinear,
    ShardedToAllLinear: RowShardedLinear,
    QuantizedShardedToAllLinear: QuantizedRowShardedLinear,
}
