"""Models of modules of their own around the arrays of others."""

from collections.abc import Callable
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

LORA = ("lora_a", "lora_b")
"""What LoRA's tensors are called in the modules that have some."""


def with_same_weights(model: nn.Module) -> nn.Module:
    """A model of modules of its own, on which LoRA can be mounted, with the same arrays."""
    made: dict[int, Any] = {}

    def twin(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(twin, value))
        if type(value) is dict:
            return {name: twin(item) for name, item in value.items()}
        if not isinstance(value, nn.Module):
            return value
        if id(value) not in made:
            made[id(value)] = module = copy(value)
            for name, item in value.items():
                module[name] = twin(item)
        return made[id(value)]

    return twin(model)


def activations_dtype(model: nn.Module) -> mx.Dtype:
    """Return the dtype of a model's activations, in which its adapters run."""
    return next(p.dtype for n, p in dict(tree_flatten(model.parameters())).items() if "norm" in n)


def widened_lora(model: nn.Module) -> nn.Module:
    """A model whose LoRA is not narrower than its activations; the same one, if it is so already.

    mlx widens a narrower tensor in every product, which takes a step two operations more for each.
    """
    return _widened(model, activations_dtype(model), lambda name: name.endswith(LORA))


def widened_streams(streams: nn.Module, dtype: mx.Dtype) -> Any:
    """Streams whose tensors are not narrower than activations of a dtype, see ``widened_lora``."""
    return _widened(streams, dtype, lambda _: True)


def _widened(module: nn.Module, dtype: mx.Dtype, chosen: Callable[[str], bool]) -> nn.Module:
    arrays: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    wider = [
        (name, array.astype(dtype))
        for name, array in arrays.items()
        if chosen(name)
        and mx.issubdtype(array.dtype, mx.floating)
        and array.dtype.size < dtype.size
    ]
    if not wider:
        return module
    twin = with_same_weights(module)
    twin.load_weights(wider, strict=False)
    return twin
