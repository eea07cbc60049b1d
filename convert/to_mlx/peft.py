"""PEFT's LoRA and DoRA, brought into mlx-lm's form.

PEFT's ``lora_A`` (r, in) and ``lora_B`` (out, r) become ``lora_a`` (in, r) and ``lora_b`` (r, out);
DoRA's magnitudes become ``m`` (out,). Modules keep transformers' names unless mlx-lm's model of the
architecture has other names. mlx-lm has one rank and one scale for a whole adapter: smaller ranks
are padded with zeros, and a module of another scale has the ratio multiplied into its ``lora_b``.
"""

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specstream_mlx.adapters.description import LORA_CONFIG, LORA_TENSORS, tensor_file
from specstream_mlx.adapters.files import LoraPart
from specstream_mlx.adapters.lora import (
    adaptable_modules,
    adapter_shapes,
    place_in_layer,
    selected_modules,
)
from specstream_mlx.errors import UserError, shown
from specstream_mlx.files import read_json
from specstream_mlx.models.architectures import architecture_of
from specstream_mlx.options import COUNT, NUMBER

from .source_tensors import read_arrays

PREFIX = "base_model.model."
"""What PEFT's names of tensors begin with."""

_TENSOR = re.compile(r"(?P<module>.+)\.(?P<kind>lora_\w+|base_layer\.weight)(\.weight)?")
_KINDS = {
    "lora_A": "lora_a",
    "lora_B": "lora_b",
    "lora_embedding_A": "lora_a",
    "lora_embedding_B": "lora_b",
    "lora_magnitude_vector": "m",
    "base_layer.weight": "base",
}

# Fields that change nothing once the adapter is trained, and those that are read below. Every
# other field must be empty, so that a variant of LoRA yet to come is refused, not misread.
_READ = {"r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"}
_WITHOUT_EFFECT = {
    *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path"),
    *("revision", "inference_mode", "target_modules", "exclude_modules", "layers_to_transform"),
    *("layers_pattern", "lora_dropout", "fan_in_fan_out", "init_lora_weights", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "runtime_config", "megatron_config"),
    *("megatron_core", "qalora_group_size", "ensure_weight_tying"),
}
_EMPTY: tuple[Any, ...] = (None, False, [], {}, "none")
# Others, such as PiSSA, start from a base that the initialisation itself has changed.
_BASE_UNTOUCHED = (None, True, False, "gaussian", "eva", "orthogonal")


def read_peft_lora(directory: Path, model: nn.Module) -> LoraPart:
    """Read the LoRA or DoRA of a PEFT directory and bring it into mlx-lm's form."""
    config_path, path = directory / LORA_CONFIG, tensor_file(directory / LORA_TENSORS)
    config = read_json(config_path)
    _check_fields(config_path, config)
    dora = bool(config.get("use_dora"))
    modules = adaptable_modules(model)
    architecture = architecture_of(getattr(model, "model_type", None))
    loras, scales = {}, {}
    for peft_name, arrays in _by_module(path).items():
        name = architecture.module_name(peft_name)
        if name not in modules:
            raise UserError(
                f"{path} has LoRA of {peft_name}, which the base does not have in mlx-lm; "
                "expected a linear layer of it or an embedding beside an untied head"
            )
        rank, scales[name] = _rank_and_scale(config_path, config, peft_name)
        _check_base_copy(path, name, arrays.pop("base", None), modules[name])
        embedding = isinstance(modules[name], nn.Embedding | nn.QuantizedEmbedding)
        if embedding and not any(other.endswith("lm_head") for other in modules):
            # PEFT's leaves the head as it is, mlx-lm's would change both
            raise UserError(
                f"{path} has LoRA of {name}, expected none: the base's head is tied to it"
            )
        expected = adapter_shapes(modules[name], rank, dora)
        if not expected:
            raise UserError(f"{config_path}: use_dora is true with {name}, expected linear layers")
        _check_shapes(path, name, arrays, expected)
        loras[name] = arrays
    if not loras:
        raise UserError(f"{path} has no LoRA tensors")
    scale = max(scales.values(), key=abs)
    rank = max(arrays["lora_b"].shape[0] for arrays in loras.values())
    tensors: dict[str, mx.array] = {}
    for name, arrays in loras.items():
        more = rank - arrays["lora_b"].shape[0]
        arrays["lora_a"] = mx.pad(arrays["lora_a"], [(0, 0), (0, more)])
        arrays["lora_b"] = mx.pad(arrays["lora_b"], [(0, more), (0, 0)])
        if scales[name] != scale:
            # float32, so that the ratio's rounding is far below that of a 16-bit adapter
            ratio = scales[name] / scale
            arrays["lora_b"] = arrays["lora_b"].astype(mx.float32) * ratio
        tensors |= {f"{name}.{kind}": tensor for kind, tensor in arrays.items()}
    keys, count = _keys(model, set(loras))
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys}
    return LoraPart(tensors, parameters, count, "dora" if dora else "lora")


def _check_fields(path: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type is {shown(config.get('peft_type'))}, expected 'LORA'")
    for field, value in config.items():
        if field not in _READ | _WITHOUT_EFFECT and value not in _EMPTY:
            raise UserError(
                f"{path}: {field} is {shown(value)}, expected none: "
                "an mlx-lm adapter cannot hold it"
            )
    start = config.get("init_lora_weights")
    if start not in _BASE_UNTOUCHED:
        raise UserError(
            f"{path}: init_lora_weights is {shown(start)}, which changes the base; expected an "
            "adapter that PEFT saved with path_initial_model_for_weight_conversion"
        )
    for field in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(field)
        if pattern is not None and not isinstance(pattern, dict):
            raise UserError(f"{path}: {field} is {shown(pattern)}, expected numbers by module")
    for field in ("use_rslora", "use_dora"):
        if not isinstance(config.get(field), bool | None):
            raise UserError(f"{path}: {field} is {shown(config[field])}, expected true or false")


def _by_module(path: Path) -> dict[str, dict[str, mx.array]]:
    """Tensors by PEFT's module name and then by mlx-lm's kind, transposed as mlx-lm has them."""
    by_module: dict[str, dict[str, mx.array]] = defaultdict(dict)
    for name, tensor in read_arrays(path).items():
        match = _TENSOR.fullmatch(name.removeprefix(PREFIX))
        kind = None if match is None else _KINDS.get(match["kind"])
        if match is None or kind is None:
            raise UserError(f"{path}: tensor {name} is not LoRA, expected nothing else")
        if kind in ("lora_a", "lora_b"):
            tensor = mx.contiguous(tensor.T)
        by_module[match["module"]][kind] = tensor
    return by_module


def _rank_and_scale(path: Path, config: dict[str, Any], name: str) -> tuple[int, float]:
    """A module's rank and its scale: ``alpha / r``, or ``alpha / sqrt(r)`` with rsLoRA."""
    rank = _by_pattern(path, config, "rank_pattern", name, config.get("r"))
    alpha = _by_pattern(path, config, "alpha_pattern", name, config.get("lora_alpha"))
    COUNT.check(f"{path}: for {name} r", rank)
    NUMBER.check(f"{path}: for {name} lora_alpha", alpha)
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(path: Path, config: dict[str, Any], field: str, name: str, default: Any) -> Any:
    """The value of ``field``'s first pattern that matches ``name``, as PEFT matches: at its end."""
    for pattern, value in (config.get(field) or {}).items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        except re.error:
            raise UserError(f"{path}: {field} has {shown(pattern)}, expected a pattern") from None
    return default


def _check_base_copy(path: Path, name: str, copy: mx.array | None, module: nn.Module) -> None:
    """Check that the copy of the base's weight that PEFT saves with a head's LoRA is unchanged."""
    if copy is None:
        return
    if "scales" in module:
        raise UserError(
            f"{path} has a copy of {name}'s weight, expected --model to be a base that is not "
            "quantized, to compare it with"
        )
    if not mx.array_equal(copy.astype(mx.float32), module.weight.astype(mx.float32)):
        raise UserError(
            f"{path}: {name}.base_layer.weight is not the base's weight, expected LoRA alone"
        )


def _check_shapes(
    path: Path, name: str, found: dict[str, mx.array], expected: dict[str, tuple[int, ...]]
) -> None:
    for kind in sorted(found.keys() ^ expected.keys()):
        what = "missing" if kind in expected else "unexpected"
        raise UserError(f"{path}: {kind} of {name} is {what}, by {LORA_CONFIG}")
    for kind, shape in expected.items():
        if found[kind].shape != shape:
            raise UserError(
                f"{path}: {kind} of {name} has shape {found[kind].shape} when transposed, "
                f"expected {shape}"
            )


def _keys(model: nn.Module, names: set[str]) -> tuple[list[str], int]:
    """mlx-lm's ``keys`` and ``num_layers`` that choose the modules ``names`` and no others.

    The keys are names within a layer if the same modules are named in each of the top layers, and
    full names otherwise.
    """
    places = {name: place_in_layer(name) for name in names}
    layers = len(model.layers)
    within = [place for place in places.values() if place is not None]
    if within:
        count = layers - min(number for number, _ in within)
        keys = {place[1] if place else name for name, place in places.items()}
        if selected_modules(model, keys, count).keys() == names:
            return sorted(keys), count
    return sorted(names), layers
