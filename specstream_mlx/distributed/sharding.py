"""A model divided among the ranks by mlx-lm's own ``shard``."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..errors import UserError
from .lora import take_lora
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
    take_lora(model)
    for tensor in dict(tree_flatten(model.parameters())).values():
        mx.eval(tensor)  # by itself, else many whole matrices would be there at a time
