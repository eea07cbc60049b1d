"""Bring an adapter in MLX's format back into the PyTorch trainer's, to go on training it."""

import json
from pathlib import Path

import mlx.core as mx

from specstream_mlx.adapters.description import STREAM_FILE, AdapterDescription, describe
from specstream_mlx.adapters.torch_files import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_CONFIG,
    STREAM_TENSORS,
)
from specstream_mlx.config import VOCABULARY, UserError
from specstream_mlx.staging import staged_directory

from ..to_mlx.peft import PREFIX

_TORCH_FORMAT = {"format": "pt"}


def torch_adapter(source: Path, target: Path) -> Path:
    """The adapter ``source`` as the PyTorch trainer starts from it, in float32.

    Args:
        source: an adapter directory with streams, and with plain LoRA or none.
        target: where it is written if ``source`` is in MLX's format: PEFT's LoRA, if there is any,
            and the streams beside it. It is kept if it is there already.

    Returns:
        ``source`` if it is in the trainer's format, else ``target``.

    Raises:
        UserError: the source has no streams, or DoRA.
    """
    adapter = describe(source)
    if adapter.format == "pytorch":
        return source
    kind = adapter.config.get("fine_tune_type", "lora")
    if adapter.stream_config is None:
        raise UserError(f"{source} has no streams, expected an adapter with some")
    if kind != "lora":
        raise UserError(f"{source}: fine_tune_type is {kind!r}, expected 'lora'")
    if target.exists():
        return target
    streams = {
        name: tensor if name == VOCABULARY else tensor.astype(mx.float32)
        for name, tensor in mx.load(str(source / STREAM_FILE)).items()
    }
    with staged_directory(target) as scratch:
        text = json.dumps(adapter.stream_config.to_dict(), indent=2) + "\n"
        (scratch / STREAM_CONFIG).write_text(text)
        mx.save_safetensors(str(scratch / STREAM_TENSORS), streams, _TORCH_FORMAT)
        if adapter.lora_headers():
            _write_lora(adapter, scratch)
    return target


def _write_lora(adapter: AdapterDescription, directory: Path) -> None:
    rank, scale = adapter.rank_and_scale()
    modules: set[str] = set()
    tensors = {}
    for name, tensor in mx.load(str(adapter.lora_file)).items():
        module, _, kind = name.rpartition(".")
        modules.add(module.rpartition(".")[2])
        tensors[f"{PREFIX}{module}.lora_{kind[-1].upper()}.weight"] = mx.contiguous(
            tensor.astype(mx.float32).T
        )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted(modules),
    }
    (directory / LORA_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    mx.save_safetensors(str(directory / LORA_TENSORS), tensors, _TORCH_FORMAT)
