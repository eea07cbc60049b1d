"""PyTorch models loaded from directories: a base alone, or a base with an adapter mounted on it."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
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

from specstream_mlx.adapters.description import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_TENSORS,
    check_vocabulary,
    describe,
    tensor_file,
)
from specstream_mlx.errors import VOCABULARY, UserError, naming, shown
from specstream_mlx.files import (
    check_shapes,
    chosen_files,
    for_libraries,
    model_headers,
    read_json,
    reason,
    short,
)
from specstream_mlx.loading.model_paths import WEIGHTS
from specstream_mlx.models.architectures import check_config
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.stream_config import StreamConfig

from .adapter_files import read_streams, read_tensors, shapes_of
from .backbone import linear_layers, use_long_factors
from .reference import SpeculativeStreamingModel
from .training_settings import TorchTrainSettings

_SCALING = "scales", "biases"
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load_base(model_dir: Path, dtype: str = "float32") -> torch.nn.Module:
    """Load a base model from a local directory in Hugging Face's or MLX's format.

    It computes what mlx-lm computes, see ``use_long_factors``; a model that MLX has quantized is
    expanded, and computes what it computes in MLX.

    With ``dtype`` bfloat16 its linear layers are held in that: under autocast they compute in it
    anyway. Embeddings, a head that is tied to them, and norms stay in float32, as hidden states do.
    """
    if not os.path.isdir(model_dir):
        raise UserError(f"model directory {short(model_dir)} does not exist")
    config = read_json(model_dir / "config.json")
    files = chosen_files(model_dir, WEIGHTS)
    headers = model_headers(files)
    with naming(model_dir / "config.json"):
        check_config(config, headers)
    disable_progress_bar()
    try:
        if is_quantized(config):
            model = _dequantized(model_dir, files, config).eval()
        else:
            held_in_bf16 = {kind for _, kind in headers.values()} == {"BF16"}
            kind = torch.bfloat16 if dtype != "float32" and held_in_bf16 else torch.float32
            with for_libraries(model_dir, WEIGHTS) as readable:
                model = AutoModelForCausalLM.from_pretrained(readable, dtype=kind, **_LOCAL).eval()
    except Exception as error:  # transformers and MLX raise what a wrong field or file leads to
        raise UserError(f"{model_dir} is not a readable model directory: {reason(error)}") from None
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{model_dir}: {name} holds NaN or infinity, expected finite numbers")
    use_long_factors(model)
    _hold(model, getattr(torch, dtype))
    return model


def is_quantized(config: Mapping[str, Any]) -> bool:
    """Tell whether MLX has quantized a model with this ``config.json``."""
    return isinstance(config.get("quantization"), Mapping)


def _dequantized(model_dir: Path, files: Sequence[Path], config: Mapping[str, Any]) -> Any:
    """A model that MLX has quantized, its values in float32."""
    weights: dict[str, Tensor] = {}
    for file in files:
        arrays: Any = mx.load(str(file))
        for path in [name.removesuffix(".scales") for name in arrays if name.endswith(".scales")]:
            of_layer = config["quantization"].get(path)
            how = of_layer if isinstance(of_layer, Mapping) else config["quantization"]
            if (mode := how.get("mode", "affine")) != "affine":
                raise UserError(f"{path} is quantized with mode {shown(mode)}, expected 'affine'")
            name, size, bits = f"{path}.weight", how["group_size"], how["bits"]
            scales, biases = (arrays.pop(f"{path}.{part}").astype(mx.float32) for part in _SCALING)
            arrays[name] = mx.dequantize(arrays[name], scales, biases, size, bits)
        for name, array in arrays.items():
            weights[name] = torch.from_numpy(np.array(array.astype(mx.float32)))
    with for_libraries(model_dir) as readable:
        of_torch = AutoConfig.from_pretrained(readable, **_LOCAL)
    if hasattr(of_torch, "quantization_config"):  # MLX's, of which transformers knows nothing
        del of_torch.quantization_config
    model, report = MODEL_FOR_CAUSAL_LM_MAPPING[type(of_torch)].from_pretrained(
        None, config=of_torch, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    if report["missing_keys"] or report["unexpected_keys"]:
        raise ValueError(f"missing {report['missing_keys']}, unknown {report['unexpected_keys']}")
    return model


def _hold(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Hold linear layers in a dtype and all else in float32; one matrix is cast at a time."""
    tied = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            linear = isinstance(module, torch.nn.Linear) and id(parameter) not in tied
            parameter.data = parameter.data.to(dtype if linear else torch.float32)


def base_fingerprint(model_dir: Path) -> str:
    """The fingerprint of a base, by which an adapter knows what it was trained on."""
    return fingerprint(read_json(model_dir / "config.json"))


def load_adapter(
    model_dir: Path,
    directory: Path,
    dtype: str = "float32",
    config: StreamConfig | None = None,
    drops: Collection[str] = (),
) -> SpeculativeStreamingModel:
    """Load a base and mount an adapter with streams on it, see ``adapter_files``.

    ``config`` is the streams', if training changes it; tensors named in ``drops`` are left out.
    """
    description = describe(directory)
    tensors = {name: t for name, t in read_streams(description).items() if name not in drops}
    assert description.stream_config is not None
    description.check_base(read_json(model_dir / "config.json"))
    base = load_base(model_dir, dtype)
    if VOCABULARY in tensors:
        path = tensor_file(directory / STREAM_TENSORS)
        check_vocabulary(path, tensors[VOCABULARY].tolist(), base.config.vocab_size)
    if (directory / LORA_CONFIG).exists() or tensor_file(directory / LORA_TENSORS).exists():
        base = mount_lora(base, directory)
    with naming(directory):
        model = SpeculativeStreamingModel(base, config or description.stream_config)
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def put_lora(base: torch.nn.Module, settings: TorchTrainSettings) -> PeftModel:
    """Put new LoRA on a base model, whose layers are replaced in place."""
    layers, top = base.config.num_hidden_layers, settings.lora_layers
    if (top or 0) > layers:
        raise UserError(f"lora_layers is {top}, expected at most the base's {layers}")
    linear = linear_layers(base)
    for target in settings.lora_targets or ():
        if target not in linear:
            raise UserError(f"lora_targets has {target!r}, expected some of {', '.join(linear)}")
    rank = settings.lora_rank or 8
    alpha: Any = settings.lora_alpha or 2 * rank  # PEFT takes what is no integer, too
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        target_modules=list(settings.lora_targets or linear),
        layers_to_transform=top and list(range(layers - top, layers)),
    )
    model = get_peft_model(base, config)
    _leave_casts_to_autocast(model)
    return model


def _leave_casts_to_autocast(model: PeftModel) -> None:
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False


def mount_lora(base: torch.nn.Module, directory: Path) -> PeftModel:
    """Put the LoRA of a PEFT directory on a base model, whose layers are replaced in place."""
    path = directory / LORA_CONFIG
    kind = read_json(path).get("peft_type")
    if kind != "LORA":
        raise UserError(f"{path}: peft_type is {shown(kind)}, expected 'LORA'")
    try:
        with for_libraries(directory) as readable:
            model = get_peft_model(base, LoraConfig.from_pretrained(str(readable)))
    except Exception as error:  # PEFT raises what a wrong field leads to
        raise UserError(f"{path} describes no LoRA of this base: {reason(error)}") from None
    _leave_casts_to_autocast(model)
    path = tensor_file(directory / LORA_TENSORS)
    tensors = read_tensors(path)
    check_shapes(path, shapes_of(tensors), shapes_of(get_peft_model_state_dict(model)))
    set_peft_model_state_dict(model, tensors)
    return model.eval()  # its dropout is of its own training
