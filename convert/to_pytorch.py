"""Adapters back to the PyTorch side: mlx-lm's LoRA as PEFT's, streams in files of their own.

Both trainers' results are so interchangeable: what one has trained, the other goes on with. PyTorch
is not needed for it.
"""

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specstream_mlx.adapters.description import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_CONFIG,
    STREAM_TENSORS,
)
from specstream_mlx.adapters.files import Adapter, read_adapter
from specstream_mlx.adapters.lora import adaptable_modules
from specstream_mlx.errors import UserError
from specstream_mlx.files import staged_directory
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.models.architectures import architecture_of

from .to_mlx.peft import PREFIX

_LINEAR = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}
_EMBEDDING = {"lora_a": "lora_embedding_A", "lora_b": "lora_embedding_B"}


def convert_to_pytorch(adapter: Path, base: Path, target: Path) -> None:
    """Write an adapter of MLX's format, of a base, as the PyTorch side and PEFT have it.

    Raises:
        UserError: the adapter does not fit the base, PEFT cannot hold it, or ``target`` exists or
            cannot be written.
    """
    if target.exists():
        raise UserError(f"{target} exists already, expected a new directory for --to-pytorch")
    model, _ = read_model(base, to_run=False)
    read = read_adapter(adapter, model, read_config(base))
    lora = _peft_tensors(read, model) if read.lora else {}
    with staged_directory(target, replace=False) as scratch:
        if read.stream_config is not None:
            _write_json(scratch / STREAM_CONFIG, read.stream_config.to_dict())
            _write_tensors(scratch / STREAM_TENSORS, read.stream_tensors)
        if lora:
            _write_json(scratch / LORA_CONFIG, _peft_config(read, lora))
            _write_tensors(scratch / LORA_TENSORS, lora)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _write_tensors(path: Path, tensors: dict[str, mx.array]) -> None:
    mx.save_safetensors(str(path), tensors, {"format": "pt"})


def _peft_tensors(read: Adapter, model: nn.Module) -> dict[str, mx.array]:
    """LoRA under PEFT's names: ``lora_A`` (r, in) and ``lora_B`` (out, r)."""
    architecture = architecture_of(getattr(model, "model_type", None))
    modules, tensors = adaptable_modules(model), {}
    for name, tensor in read.lora.items():
        owner, _, kind = name.rpartition(".")
        embedding = isinstance(modules[owner], nn.Embedding | nn.QuantizedEmbedding)
        if tensor.ndim > 2:
            raise UserError(
                f"{read.path} has LoRA of the experts {owner}, expected linear layers: PEFT has "
                "none of that form"
            )
        kinds = _EMBEDDING if embedding else _LINEAR
        torch_name = f"{PREFIX}{architecture.transformers_name(owner)}.{kinds[kind]}"
        tensors[torch_name] = tensor if kind == "m" else mx.contiguous(tensor.T)
    return tensors


def _peft_config(read: Adapter, lora: dict[str, mx.array]) -> dict[str, Any]:
    """PEFT's ``adapter_config.json``: one rank and one scale for all modules."""
    parameters = read.config["lora_parameters"]
    rank = min(t.shape[0] for name, t in lora.items() if name.endswith(("_A", "_A.weight")))
    alpha = parameters["scale"] * rank
    modules = {name.removeprefix(PREFIX).partition(".lora_")[0] for name in lora}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": read.stream_config.base_model if read.stream_config else None,
        "r": rank,
        "lora_alpha": round(alpha) if math.isclose(alpha, round(alpha)) else alpha,
        "lora_dropout": parameters.get("dropout", 0.0),
        "target_modules": sorted(modules),
        "use_dora": read.config.get("fine_tune_type") == "dora",
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
