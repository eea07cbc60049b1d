"""A copy of a model's modules that shares all arrays."""

from copy import copy
from typing import Any

import mlx.nn as nn


def shared_copy(model: nn.Module) -> nn.Module:
    """Make a model of modules of its own, on which LoRA can be put, with the same arrays."""
    made: dict[int, Any] = {}

    def copy_of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(copy_of, value))
        if type(value) is dict:
            return {name: copy_of(item) for name, item in value.items()}
        if not isinstance(value, nn.Module):
            return value
        if id(value) not in made:
            made[id(value)] = module = copy(value)
            for name, item in value.items():
                module[name] = copy_of(item)
        return made[id(value)]

    return copy_of(model)
