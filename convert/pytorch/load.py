"""PyTorch models loaded from directories: a base alone, or a base with an adapter mounted on it."""

import os
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from specstream_mlx.adapters.description import check_vocabulary, describe
from specstream_mlx.adapters.torch_files import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_TENSORS,
    tensor_file,
)
from specstream_mlx.checked_files import model_headers, read_json, reason, short
from specstream_mlx.config import VOCABULARY, UserError, shown
from specstream_mlx.models.architectures import check_config
from specstream_mlx.models.fingerprint import fingerprint

from .adapter_files import read_streams, read_tensors
from .backbone import linear_layers, use_long_factors
from .lora_settings import LoraShape
from .packed import PackedLinear, is_packed, read_packed
from .reference import SpeculativeStreamingModel


def load_base(model_dir: Path, dtype: str = "float32") -> torch.nn.Module:
    """Load a base model from a local directory in Hugging Face's or MLX's format.

    It computes what mlx-lm computes, see ``use_long_factors``; of a model that MLX has quantized,
    what that computes, see ``packed``.

    Args:
        model_dir: the directory.
        dtype: ``float32``; or ``bfloat16``, which its linear layers are held in. Under autocast
            these compute in bfloat16 anyway, so they compute the same in half the memory.
            Embeddings, and a head that is tied to them, and norms stay in float32, since hidden
            states do.

    Raises:
        UserError: the directory or a file in it is missing or damaged, or describes a model that
            the MLX runtime refuses too.
    """
    if not os.path.isdir(model_dir):
        raise UserError(f"model directory {short(model_dir)} does not exist")
    config = read_json(model_dir / "config.json")
    files = sorted(model_dir.glob("model*.safetensors"))
    headers = model_headers(files)
    try:
        check_config(config, headers)
    except UserError as error:
        raise UserError(f"{model_dir / 'config.json'}: {error}") from None
    disable_progress_bar()
    kind, packed = getattr(torch, dtype), None
    if is_packed(config):
        packed = read_packed(files, config, kind)
    elif dtype != "float32" and {kind for _, kind in headers.values()} == {"BF16"}:
        kind = torch.bfloat16
    else:
        kind = torch.float32
    try:
        model = _model(model_dir, kind, packed).eval()
    except Exception as error:  # transformers raises what a wrong field or file leads to
        raise UserError(f"{model_dir} is not a readable model directory: {reason(error)}") from None
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{model_dir}: {name} holds NaN or infinity, expected finite numbers")
    use_long_factors(model)
    _hold(model, getattr(torch, dtype))
    return model


def _model(
    model_dir: Path,
    dtype: torch.dtype,
    packed: tuple[dict[str, Tensor], dict[str, PackedLinear]] | None,
) -> Any:
    """A transformers model with the directory's weights, or with those of ``read_packed``."""
    local = {"local_files_only": True, "trust_remote_code": False}
    if packed is None:
        return AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, **local)
    config = AutoConfig.from_pretrained(model_dir, **local)
    if hasattr(config, "quantization_config"):  # MLX's, of which transformers knows nothing
        del config.quantization_config
    weights, layers = packed
    shapes = {  # a number each, seen in a matrix's shape
        f"{path}.weight": torch.zeros((), dtype=dtype).expand(layer.out_features, layer.in_features)
        for path, layer in layers.items()
    }
    model, found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=weights | shapes, dtype=dtype, output_loading_info=True
    )
    if found["missing_keys"] or found["unexpected_keys"]:
        raise ValueError(f"missing {found['missing_keys']}, unknown {found['unexpected_keys']}")
    for name, parameter in model.named_parameters():  # those that dtype would round
        if name in weights:
            parameter.data = weights[name]
    for path, layer in layers.items():
        layer.bias = model.get_submodule(path).bias
        model.set_submodule(path, layer)
    return model


def _hold(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Hold linear layers in a dtype and all else in float32; one matrix is cast at a time."""
    tied = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            linear = isinstance(module, torch.nn.Linear) and id(parameter) not in tied
            parameter.data = parameter.data.to(dtype if linear else torch.float32)


def base_fingerprint(model_dir: Path) -> str:
    """The fingerprint of a base, by which an adapter knows what it was trained on.

    Args:
        model_dir: directory with the base's ``config.json``.

    Raises:
        UserError: the file is missing or is not a JSON object.
    """
    return fingerprint(read_json(model_dir / "config.json"))


def load_adapter(
    model_dir: Path, directory: Path, dtype: str = "float32"
) -> SpeculativeStreamingModel:
    """Load a base and mount an adapter with streams on it.

    Args:
        model_dir: directory of the base.
        directory: adapter directory, see ``adapter_files``.
        dtype: of the base's linear layers, see ``load_base``.

    Raises:
        UserError: a file is missing or damaged, or the adapter was trained on another base.
    """
    found = describe(directory)
    tensors = read_streams(found)
    assert found.stream_config is not None
    found.check_base(read_json(model_dir / "config.json"))
    base = load_base(model_dir, dtype)
    if VOCABULARY in tensors:
        path = tensor_file(directory / STREAM_TENSORS)
        check_vocabulary(path, tensors[VOCABULARY].tolist(), base.config.vocab_size)
    if has_lora(directory):
        base = mount_lora(base, directory)
    try:
        model = SpeculativeStreamingModel(base, found.stream_config)
    except UserError as error:
        raise UserError(f"{directory}: {error}") from None
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def put_lora(base: torch.nn.Module, shape: LoraShape) -> PeftModel:
    """Put new LoRA on a base model, whose layers are replaced in place.

    Args:
        base: the model.
        shape: where, and of which rank.

    Raises:
        UserError: the base lacks such layers.
    """
    layers: int = base.config.num_hidden_layers
    if (shape.lora_layers or 0) > layers:
        raise UserError(f"lora_layers is {shape.lora_layers}, expected at most the base's {layers}")
    linear = linear_layers(base)
    for target in shape.lora_targets or ():
        if target not in linear:
            raise UserError(f"lora_targets has {target!r}, expected some of {', '.join(linear)}")
    rank = shape.lora_rank or 8
    alpha: Any = shape.lora_alpha or 2 * rank  # PEFT takes what is no integer, too
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        target_modules=list(shape.lora_targets or linear),
        layers_to_transform=shape.lora_layers and list(range(layers - shape.lora_layers, layers)),
    )
    model = get_peft_model(base, config)
    _leave_casts_to_autocast(model)
    return model


def _leave_casts_to_autocast(model: PeftModel) -> None:
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False


def has_lora(directory: Path) -> bool:
    """Tell whether an adapter directory holds LoRA, as PEFT writes it."""
    return (directory / LORA_CONFIG).exists() or tensor_file(directory / LORA_TENSORS).exists()


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
        model = get_peft_model(base, LoraConfig.from_pretrained(str(directory)))
    except Exception as error:  # PEFT raises what a wrong field leads to
        raise UserError(f"{path} describes no LoRA of this base: {reason(error)}") from None
    _leave_casts_to_autocast(model)
    path = tensor_file(directory / LORA_TENSORS)
    tensors = read_tensors(path)
    expected = get_peft_model_state_dict(model)
    for name in sorted(set(expected) ^ set(tensors)):
        found = "unknown" if name in tensors else "missing"
        raise UserError(f"{path}: tensor {name!r} is {found}, by {LORA_CONFIG}")
    for name, tensor in expected.items():
        shape, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
        if shape != wanted:
            raise UserError(f"{path}: tensor {name!r} has shape {shape}, expected {wanted}")
    set_peft_model_state_dict(model, tensors)
    return model.eval()  # its dropout is of its own training
