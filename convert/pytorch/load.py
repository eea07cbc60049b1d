"""PyTorch models loaded from directories: a base alone, or a base with an adapter mounted on it."""

import os
from pathlib import Path

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from specstream_mlx.adapters.description import describe
from specstream_mlx.adapters.torch_files import (
    LORA_CONFIG,
    LORA_TENSORS,
    tensor_file,
)
from specstream_mlx.checked_files import model_headers, read_json, reason, short
from specstream_mlx.config import ConfigError, UserError, shown
from specstream_mlx.models.architectures import check_config
from specstream_mlx.models.fingerprint import fingerprint

from .adapter_files import read_streams, read_tensors
from .backbone import use_long_factors
from .reference import SpeculativeStreamingModel


def load_base(model_dir: Path) -> torch.nn.Module:
    """Load a base model from a local Hugging Face directory, in float32.

    It computes what mlx-lm computes, see ``use_long_factors``.

    Raises:
        UserError: the directory or a file in it is missing or damaged, or describes a model that
            the MLX runtime refuses too.
    """
    if not os.path.isdir(model_dir):
        raise UserError(f"model directory {short(model_dir)} does not exist")
    config = read_json(model_dir / "config.json")
    headers = model_headers(sorted(model_dir.glob("model*.safetensors")))
    try:
        check_config(config, headers)
    except UserError as error:
        raise UserError(f"{model_dir / 'config.json'}: {error}") from None
    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        ).eval()
    except Exception as error:  # transformers raises what a wrong field or file leads to
        raise UserError(f"{model_dir} is not a readable model directory: {reason(error)}") from None
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{model_dir}: {name} holds NaN or infinity, expected finite numbers")
    use_long_factors(model)
    return model


def base_fingerprint(model_dir: Path) -> str:
    """The fingerprint of a base, by which an adapter knows what it was trained on.

    Args:
        model_dir: directory with the base's ``config.json``.

    Raises:
        UserError: the file is missing or is not a JSON object.
    """
    return fingerprint(read_json(model_dir / "config.json"))


def load_adapter(model_dir: Path, directory: Path) -> SpeculativeStreamingModel:
    """Load a base and mount an adapter with streams on it, in float32.

    Args:
        model_dir: Hugging Face directory of the base.
        directory: adapter directory, see ``adapter_files``.

    Raises:
        UserError: a file is missing or damaged, or the adapter was trained on another base.
    """
    found = describe(directory)
    tensors = read_streams(found)
    found.check_base(read_json(model_dir / "config.json"))
    base = load_base(model_dir)
    if (directory / LORA_CONFIG).exists() or tensor_file(directory / LORA_TENSORS).exists():
        found.check_lora()
        base = mount_lora(base, directory)
    try:
        model = SpeculativeStreamingModel(base, found.stream_config)
    except ConfigError as error:
        raise UserError(f"{directory}: {error}") from None
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def mount_lora(base: torch.nn.Module, directory: Path) -> PeftModel:
    """Put the LoRA of a PEFT directory on a base model, whose layers are replaced in place.

    Args:
        base: the model that the LoRA was trained on.
        directory: ``adapter_config.json`` and ``adapter_model.safetensors``, ``.bin`` or ``.pt``.

    Raises:
        UserError: a file is missing or damaged, or a tensor is missing, unknown or of another
            shape than the configuration asks for.
    """
    path = directory / LORA_CONFIG
    kind = read_json(path).get("peft_type")
    if kind != "LORA":
        raise UserError(f"{path}: peft_type is {shown(kind)}, expected 'LORA'")
    try:
        model = get_peft_model(base, LoraConfig.from_pretrained(directory))
    except Exception as error:  # PEFT raises what a wrong field leads to
        raise UserError(f"{path} describes no LoRA of this base: {reason(error)}") from None
    path = tensor_file(directory / LORA_TENSORS)
    tensors = read_tensors(path)
    expected = get_peft_model_state_dict(model)
    for name in sorted(set(expected) ^ set(tensors)):
        found = "unknown" if name in tensors else "missing"
        raise UserError(f"{path}: tensor {name!r} is {found}, by {LORA_CONFIG}")
    for name, tensor in expected.items():
        found, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
        if found != wanted:
            raise UserError(f"{path}: tensor {name!r} has shape {found}, expected {wanted}")
    set_peft_model_state_dict(model, tensors)
    return model
