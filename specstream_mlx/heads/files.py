"""The files of draft heads: found, recognised by their tensors, checked against the target."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..adapters.mounting import activations_dtype
from ..checked_files import read_arrays, read_json, tensor_headers
from ..config import UserError
from ..engine.draft_head import MountedHead
from .eagle import is_eagle, read_eagle
from .eagle3 import is_eagle3, read_eagle3
from .hydra import is_hydra, read_hydra
from .medusa import is_medusa, read_medusa
from .tensors import Target, Tensors

CONFIG = "config.json"
"""A head's own configuration, where its kind has one."""

WITHIN_MODEL = ("medusa_head.",)
"""Beginnings of the names of a head's tensors that lie among those of a whole model."""

_PICKLES = ("*.pt", "*.bin", "*.pth")

_KINDS: tuple[tuple[Callable[[Tensors], bool], Callable[[Tensors], MountedHead]], ...] = (
    (is_medusa, read_medusa),
    (is_hydra, read_hydra),
    (is_eagle, read_eagle),
    (is_eagle3, read_eagle3),
)


def read_head(directory: Path, model: nn.Module, config: Mapping[str, Any]) -> MountedHead:
    """Read a draft head and check that it fits a target.

    Args:
        directory: safetensors as published, or as ``specstream-mlx convert`` has made them, and
            ``config.json`` where the kind has one.
        model: the target, an mlx-lm model.
        config: its ``config.json``.

    Raises:
        UserError: there is no head in the directory that is known here, or it does not fit; one
            sentence says why.
    """
    arrays: dict[str, mx.array] = {}
    for file in head_files(directory):
        arrays |= read_arrays(file)
    return head_of(directory, arrays, head_config(directory), model, config)


def head_files(directory: Path) -> list[Path]:
    """List the safetensors of a draft head; no tensor is read.

    Raises:
        UserError: there are none, or they hold a whole model.
    """
    if not os.path.isdir(directory):
        raise UserError(f"the draft head {directory} is not a directory, expected one")
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        torch = pickles(directory)
        found = f"{torch[0].name} and no safetensors" if torch else "no safetensors"
        raise UserError(
            f"the draft head {directory} has {found}, expected a head's tensors in that format: "
            "specstream-mlx convert --draft-head makes them of torch's files"
        )
    names = [name for file in files for name in tensor_headers(file)]
    if any(name.startswith(WITHIN_MODEL) for name in names) and "model.norm.weight" in names:
        raise UserError(
            f"the draft head {directory} is a whole model with a head in it, expected the head "
            "alone: specstream-mlx convert --draft-head takes it out"
        )
    return files


def pickles(directory: Path) -> list[Path]:
    """List torch's files in a directory."""
    return sorted(file for pattern in _PICKLES for file in directory.glob(pattern))


def head_config(directory: Path) -> dict[str, Any]:
    """Read a head's ``config.json``; empty where it has none.

    Raises:
        UserError: it is damaged.
    """
    path = directory / CONFIG
    return read_json(path) if os.path.lexists(path) else {}


def head_of(
    directory: Path,
    arrays: dict[str, mx.array],
    values: Mapping[str, Any],
    model: nn.Module,
    config: Mapping[str, Any],
) -> MountedHead:
    """Make a draft head of its tensors.

    Args:
        directory: the tensors' directory, for errors.
        arrays: the tensors by name.
        values: the head's ``config.json``; empty: it has none.
        model: the target, an mlx-lm model.
        config: the target's ``config.json``.

    Raises:
        UserError: see ``read_head``.
    """
    tensors = Tensors(directory, arrays, values, Target(config, activations_dtype(model)))
    for is_kind, read in _KINDS:
        if is_kind(tensors):
            return read(tensors)
    found = f"{len(arrays)} tensors, such as {min(arrays)}" if arrays else "no tensor"
    raise UserError(
        f"the draft head {directory} has {found}, expected those of Medusa, Hydra or EAGLE"
    )
