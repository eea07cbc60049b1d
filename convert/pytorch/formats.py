"""The PyTorch-side adapter directory.

adapter_config.json, adapter_model.safetensors   peft's LoRA; shared mode only
speculative_streaming.json                       ``StreamConfig.to_dict()``
speculative_streaming.safetensors                the tensors of ``StreamConfig.tensor_shapes()``
"""

import json
from pathlib import Path

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from specstream_mlx.adapters.description import AdapterDescription, describe
from specstream_mlx.adapters.torch_files import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_CONFIG,
    STREAM_TENSORS,
    tensor_file,
)
from specstream_mlx.checked_files import check_shapes, read_json
from specstream_mlx.config import ConfigError, UserError
from specstream_mlx.models.architectures import check_config
from specstream_mlx.models.fingerprint import fingerprint

from ..staging import staged_directory
from .backbone import use_long_factors
from .reference import SpeculativeStreamingModel

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class FormatError(UserError):
    """A file is missing, damaged or not what it should be; the message is one sentence."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file, or of a ``.bin`` or ``.pt`` one without any code.

    Raises:
        FormatError: the file is missing, damaged, or holds anything but named tensors.
    """
    if not path.is_file():
        raise FormatError(f"{path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise FormatError(f"{path} is not a readable safetensors file: {error}") from None
    except Exception as error:  # torch.load raises what the damaged or hostile bytes lead to
        reason = str(error).strip().split("\n")[0]
        raise FormatError(f"{path} is refused: {type(error).__name__}: {reason}") from None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise FormatError(f"{path} holds something else than named tensors")
    return tensors


def check_target(directory: Path) -> None:
    """Raise ``FormatError`` if ``directory`` exists and is neither empty nor an adapter."""
    if not directory.exists() or (directory / STREAM_CONFIG).is_file():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise FormatError(f"{directory} exists and is no adapter directory")


def write_adapter(model: SpeculativeStreamingModel, directory: Path) -> None:
    """Write the adapter directory of a trained model.

    It is written beside ``directory`` and renamed. An adapter that is there already is replaced.

    Raises:
        FormatError: ``directory`` exists and is neither empty nor an adapter directory.
    """
    directory = Path(directory)
    check_target(directory)
    with staged_directory(directory) as scratch:
        text = json.dumps(model.config.to_dict(), indent=2) + "\n"
        (scratch / STREAM_CONFIG).write_text(text, encoding="utf-8")
        save_file(_plain(model.stream_tensors()), scratch / STREAM_TENSORS, {"format": "pt"})
        if isinstance(model.base, PeftModel):
            lora_config = model.base.peft_config[model.base.active_adapter]
            lora_config.save_pretrained(scratch)
            lora = get_peft_model_state_dict(model.base)
            save_file(_plain(lora), scratch / LORA_TENSORS, {"format": "pt"})


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def read_streams(found: AdapterDescription) -> dict[str, Tensor]:
    """The tensors beside ``speculative_streaming.json``, checked against it.

    Raises:
        UserError: the directory has no streams of this side, a file is missing or damaged, or a
            tensor is missing, unknown, or of another shape or dtype than the configuration says.
    """
    if found.format != "pytorch" or found.stream_config is None:
        raise FormatError(f"{found.path / STREAM_CONFIG} does not exist")
    path = tensor_file(found.path / STREAM_TENSORS)
    tensors = read_tensors(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_shapes(path, shapes, found.stream_config.tensor_shapes())
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOATS:
            raise FormatError(
                f"{path}: {name} has dtype {tensor.dtype}, expected a floating-point one"
            )
    return tensors


def load_base(model_dir: Path) -> torch.nn.Module:
    """A base model from a local Hugging Face directory, in float32, as mlx-lm computes it.

    Raises:
        UserError: the directory or a file in it is missing or damaged, or describes a model that
            the runtime refuses.
    """
    model_dir = Path(model_dir)
    if not model_dir.is_dir():
        raise FormatError(f"model directory {model_dir} does not exist")
    config = read_json(model_dir / "config.json")
    try:
        check_config(config)
    except UserError as error:
        raise FormatError(f"{model_dir / 'config.json'}: {error}") from None
    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True
        ).eval()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise FormatError(f"{model_dir} is not a readable model directory: {reason}") from None
    use_long_factors(model)
    return model


def base_fingerprint(model_dir: Path) -> str:
    """``fingerprint`` of the ``config.json`` of a model directory."""
    return fingerprint(read_json(Path(model_dir) / "config.json"))


def load_adapter(model_dir: Path, directory: Path) -> SpeculativeStreamingModel:
    """The model of a base directory with an adapter directory mounted, in float32.

    Raises:
        UserError: a file is missing or damaged, or the adapter was trained on another base.
    """
    directory = Path(directory)
    found = describe(directory)
    tensors = read_streams(found)
    found.check_base(read_json(Path(model_dir) / "config.json"))
    base = load_base(model_dir)
    if (directory / LORA_CONFIG).exists() or tensor_file(directory / LORA_TENSORS).exists():
        base = mount_lora(base, directory)
    try:
        model = SpeculativeStreamingModel(base, found.stream_config)
    except ConfigError as error:
        raise FormatError(f"{directory}: {error}") from None
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def mount_lora(base: torch.nn.Module, directory: Path) -> PeftModel:
    """``base`` with the LoRA of a PEFT directory, every tensor accounted for.

    Raises:
        UserError: a file is missing or damaged, or the tensors are not those that the
            configuration calls for.
    """
    path = directory / LORA_CONFIG
    kind = read_json(path).get("peft_type")
    if kind != "LORA":
        raise FormatError(f"{path}: peft_type is {kind!r}, expected 'LORA'")
    try:
        model = get_peft_model(base, LoraConfig.from_pretrained(directory))
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path}: {error}") from None
    path = tensor_file(directory / LORA_TENSORS)
    tensors = read_tensors(path)
    expected = get_peft_model_state_dict(model)
    for name in sorted(set(expected) ^ set(tensors)):
        found = "unknown" if name in tensors else "missing"
        raise FormatError(f"{path}: tensor {name!r} is {found}, by {LORA_CONFIG}")
    for name, tensor in expected.items():
        found, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
        if found != wanted:
            raise FormatError(f"{path}: tensor {name!r} has shape {found}, expected {wanted}")
    set_peft_model_state_dict(model, tensors)
    return model
