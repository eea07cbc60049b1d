"""mlx-lm's LoRA and DoRA: the modules that take it, their tensors, and a model with an adapter.

An adapter's ``keys`` are module names within a layer, looked up in the last ``num_layers`` layers,
or full names within the model, looked up anywhere; without ``keys`` every linear, expert and
embedding module of those layers is taken, as in ``mlx_lm.tuner``.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..distributed.sharding import Sharded
from ..hardware.cpu import ADDED, exchange

_LINEAR = (nn.Linear, nn.QuantizedLinear, Sharded)
_EXPERTS = (SwitchLinear, QuantizedSwitchLinear)
_EMBEDDING = (nn.Embedding, nn.QuantizedEmbedding)


def adaptable_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Find a base's linear, expert and embedding modules by name."""
    kinds = (*_LINEAR, *_EXPERTS, *_EMBEDDING)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def place_in_layer(name: str) -> tuple[int, str] | None:
    """Split a module's name into layer number and name in the layer; ``None`` outside layers."""
    place = re.search(r"\blayers\.(\d+)\.?(.*)", name)
    return place and (int(place[1]), place[2])


def selected_modules(
    model: nn.Module, keys: Collection[str] | None, num_layers: int
) -> dict[str, nn.Module]:
    """Find the modules by name that ``keys`` choose."""
    first = len(model.layers) - num_layers if num_layers > 0 else 0
    chosen = {}
    for name, module in adaptable_modules(model).items():
        place = place_in_layer(name)
        by_layer = place is not None and place[0] >= first and (keys is None or place[1] in keys)
        if by_layer or (keys is not None and name in keys):
            chosen[name] = module
    return chosen


def adapter_shapes(module: nn.Module, rank: int, dora: bool) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the tensors that mlx-lm trains for ``module``."""
    rows, columns = module.weight.shape[-2:]
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding | QuantizedSwitchLinear):
        columns = columns * 32 // module.bits
    elif isinstance(module, Sharded):
        rows, columns = module.whole_shape
    if isinstance(module, _LINEAR):
        shapes: dict[str, tuple[int, ...]] = {"lora_a": (columns, rank), "lora_b": (rank, rows)}
        return shapes | {"m": (rows,)} if dora else shapes
    if dora:
        return {}
    if isinstance(module, _EMBEDDING):
        return {"lora_a": (rows, rank), "lora_b": (rank, columns)}
    experts = module.weight.shape[0]
    return {"lora_a": (experts, rank, columns), "lora_b": (experts, rows, rank)}


def own_parts(model: nn.Module, lora: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Cut LoRA tensors to the parts of this process, where several divide the model."""
    modules, parts = adaptable_modules(model), dict(lora)
    for name, tensor in lora.items():
        path, kind = name.rsplit(".", 1)
        if isinstance(module := modules[path], Sharded):
            parts[name] = module.part_of(kind, tensor)
    return parts


# A model with an adapter --------------------------------------------------------------------


def put_on(model: nn.Module, num_layers: int, parameters: Mapping[str, Any], dora: bool) -> None:
    """Put untrained LoRA or DoRA layers onto ``model``, to decode with; changed in place."""
    linear_to_lora_layers(model, num_layers, {**parameters, "dropout": 0.0}, dora)
    exchange(model, ADDED)


def activations_dtype(model: nn.Module) -> mx.Dtype:
    """Return the dtype of a model's activations, which its adapters get."""
    return next(p.dtype for n, p in dict(tree_flatten(model.parameters())).items() if "norm" in n)
