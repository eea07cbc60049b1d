"""Resident models: one base and many adapters, all of them ready to decode at any time."""

from collections.abc import Mapping
from pathlib import Path

from ..adapters.user_adapters import check_name
from ..errors import UserError
from ..loading import SpeculativeModel

BASE = "base"
"""The base's name; an adapter's is ``base:`` and its own."""


def adapters_in(folder: Path) -> dict[str, Path]:
    """Find the adapter directories in a folder, by name."""
    paths = {path.parent.name: path.parent for path in folder.glob("*/adapter_config.json")}
    if not paths:
        raise UserError(f"{folder} has no adapters, expected a directory of each adapter in it")
    return dict(sorted(paths.items()))


def resident(
    base: SpeculativeModel, adapters: Mapping[str, str | Path]
) -> dict[str, SpeculativeModel]:
    """Make a model of each adapter, named as clients name them; all share the base's weights."""
    if base.adapter is not None and base.adapter.lora:
        raise UserError(f"{base.adapter.path} has LoRA, expected lossless streams for the base")
    models = {BASE: base}
    for name, directory in adapters.items():
        check_name(name)
        models[f"{BASE}:{name}"] = base.with_adapter(directory)
    return models
