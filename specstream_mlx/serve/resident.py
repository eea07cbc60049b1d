"""Resident models: one base and many adapters, all of them ready to decode at any time."""

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn

from ..config import UserError, shown
from ..loading import SpeculativeModel

BASE = "base"
"""The base's name; an adapter's is ``base:`` and its own."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def adapters_in(folder: Path) -> dict[str, Path]:
    """The adapter directories in a folder, by name.

    Raises:
        UserError: there is none.
    """
    found = {path.parent.name: path.parent for path in folder.glob("*/adapter_config.json")}
    if not found:
        raise UserError(f"{folder} has no adapters, expected a directory of each adapter in it")
    return dict(sorted(found.items()))


def resident(
    base: SpeculativeModel, adapters: Mapping[str, str | Path]
) -> dict[str, SpeculativeModel]:
    """The base and one model for each adapter, by name; all share the base's weights.

    Args:
        base: with lossless streams or none.
        adapters: directories, or names of bundled adapters, by the names that clients use.

    Raises:
        UserError: a name is none, or a directory is no adapter of this base.
    """
    if base.adapter is not None and base.adapter.lora:
        raise UserError(f"{base.adapter.path} has LoRA, expected lossless streams for the base")
    models = {BASE: base}
    for name, directory in adapters.items():
        if not _NAME.fullmatch(name):
            raise UserError(
                f"the adapter's name is {shown(name)}, expected letters, digits, '.', '_' and '-'"
            )
        model = replace(base, model=with_same_weights(base.model), adapter=None, streams=None)
        model.swap_adapter(directory)
        if model.adapter is not None and not model.adapter.lora:
            model.model = base.model  # prompts that were read by the one serve the other
        models[f"{BASE}:{name}"] = model
    return models


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
