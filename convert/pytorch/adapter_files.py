"""Adapter directories as PyTorch trains them: written, read and checked.

adapter_config.json, adapter_model.safetensors   PEFT's LoRA, if there is any
speculative_streaming.json                       ``StreamConfig.to_dict()``
speculative_streaming.safetensors                the tensors of ``StreamConfig.tensor_shapes()``
"""

import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor

from specstream_mlx.adapters.description import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_CONFIG,
    STREAM_TENSORS,
    AdapterDescription,
    tensor_file,
)
from specstream_mlx.errors import VOCABULARY, UserError
from specstream_mlx.files import check_shapes, other_file, staged_directory, tensor_headers

from .reference import SpeculativeStreamingModel

_OURS = re.compile(
    "|".join(map(re.escape, (STREAM_CONFIG, STREAM_TENSORS, LORA_CONFIG, LORA_TENSORS)))
)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the CPU tensors of a ``.safetensors`` file, or of a ``.bin`` or ``.pt`` one by name.

    The latter two are pickles, which are unpickled without running any code in them.
    """
    if path.suffix == ".safetensors":
        tensor_headers(path)
    elif not os.path.isfile(path):
        raise UserError(f"{path} is missing")
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else unpickled(path)
    except Exception:  # torch.load raises what the damaged or hostile bytes lead to
        raise UserError(
            f"{path} is refused: it is damaged, or asks for more than tensors, of which nothing "
            "was run; expected tensors by name"
        ) from None
    items = tensors.items() if isinstance(tensors, dict) else [(None, None)]
    for name, tensor in items:
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise UserError(f"{path} holds something other than named tensors")
        if not torch.isfinite(tensor).all():
            raise UserError(f"{path}: {name} holds NaN or infinity, expected finite numbers")
    return tensors


def unpickled(path: Path) -> Any:
    """Read what torch has saved, without running code in it or printing torch's warnings of it."""
    with warnings.catch_warnings(action="ignore"):
        return torch.load(path, map_location="cpu", weights_only=True)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_adapter_replaceable(directory: Path) -> None:
    """Check that an adapter may be written to ``directory``."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file, expected an adapter's directory to replace")
    if directory.exists() and (other := other_file(directory, _OURS)) is not None:
        raise UserError(f"{directory} holds {other}, expected only an adapter's files to replace")


def write_adapter(model: torch.nn.Module, directory: Path) -> None:
    """Write a model's streams and its LoRA, of which it has one or both, as an adapter directory.

    The directory appears complete or not at all, and replaces an adapter that is there already.
    """
    check_adapter_replaceable(directory)
    with staged_directory(directory) as scratch:
        if isinstance(model, SpeculativeStreamingModel):
            text = json.dumps(model.config.to_dict(), indent=2) + "\n"
            (scratch / STREAM_CONFIG).write_text(text, encoding="utf-8")
            save_file(_plain(model.stream_tensors()), scratch / STREAM_TENSORS, {"format": "pt"})
            model = model.base
        if isinstance(model, PeftModel):
            model.peft_config[model.active_adapter].save_pretrained(str(scratch))
            tensors = _plain(get_peft_model_state_dict(model))
            save_file(tensors, scratch / LORA_TENSORS, {"format": "pt"})
        check_adapter_replaceable(directory)


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def read_streams(description: AdapterDescription) -> dict[str, Tensor]:
    """Read the CPU tensors of an adapter's streams and pruner, and check them."""
    if description.format != "pytorch" or description.stream_config is None:
        raise UserError(f"{description.path / STREAM_CONFIG} is missing")
    path = tensor_file(description.path / STREAM_TENSORS)
    tensors = read_tensors(path)
    check_shapes(path, shapes_of(tensors), description.stream_config.tensor_shapes())
    for name, tensor in tensors.items():
        integers = name == VOCABULARY
        if tensor.dtype not in ((torch.int32,) if integers else _FLOATS):
            expected = "int32" if integers else "a floating-point one"
            raise UserError(f"{path}: {name} has dtype {tensor.dtype}, expected {expected}")
    return tensors
