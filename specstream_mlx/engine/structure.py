"""Where an mlx-lm model keeps the parts that the decoder borrows."""

import threading
from collections.abc import Sequence
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from ..config import UserError

layers_lock = threading.RLock()
"""Held by the one thread that may see or change a model's list of layers."""


class UnsupportedModelError(UserError):
    """The model's structure is not one that the decoder can drive."""


def layers_owner(model: nn.Module) -> nn.Module:
    """The module that holds the model's layers as its ``layers``.

    Raises:
        UnsupportedModelError: no module does.
    """
    for _, module in model.named_modules():
        if _same_layers(module.get("layers"), model.layers):
            return module
    raise UnsupportedModelError("the model does not hold its layers in one list")


def own_caches(model: nn.Module) -> list[Any]:
    """Empty caches as mlx-lm makes them for a model, one per layer."""
    with layers_lock:
        return make_prompt_cache(model)


def _same_layers(found: Any, layers: Sequence[nn.Module]) -> bool:
    """Whether ``found`` is the list of these layers; a model's ``layers`` may be a copy of it."""
    if not isinstance(found, list) or len(found) != len(layers):
        return False
    return all(one is other for one, other in zip(found, layers, strict=True))


def attention_with_rope(number: int, layer: nn.Module) -> nn.Module:
    """The attention of ``layer``, the model's ``number``-th.

    Raises:
        UnsupportedModelError: it has no rotary embedding, or one that does not depend on
            positions alone.
    """
    attention = next((m for m in layer.children().values() if "rope" in m), None)
    if attention is None:
        raise UnsupportedModelError(f"layer {number} has no attention with rope")
    if isinstance(attention["rope"], DynamicNTKScalingRoPE):
        raise UnsupportedModelError(
            f"layer {number} scales its rope by the length of the text, "
            "expected a rope that depends on positions alone"
        )
    return attention
