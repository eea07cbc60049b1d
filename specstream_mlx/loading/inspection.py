"""Description of a base model or an adapter, from its configuration and tensor headers.

No weight is read, so a model of any size takes a moment and next to no memory.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from ..adapters.description import ADAPTER_CONFIG, STREAM_CONFIG, AdapterDescription, describe
from ..errors import VOCABULARY, UserError, shown
from ..files import Headers, chosen_files, model_headers, read_json, short
from ..models.architectures import check_config, completed, fp8_tensor, tied_where_untold
from ..models.fingerprint import fingerprint
from ..options import COUNT, OBJECT
from .model_paths import WEIGHTS, weight_files

_LORA_TENSOR = re.compile(
    r"(.*)\.(?:lora_(?:a|b|[AB](?:\.\w+)?\.weight|embedding_[AB]|magnitude_vector(?:\.\w+)*)|m)"
)
"""LoRA tensors of mlx-lm and PEFT; ``m`` and ``lora_magnitude_vector`` are DoRA's."""
_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"),
    *("intermediate_size", "num_key_value_heads", "head_dim", "max_position_embeddings"),
)
"""Fields of ``config.json``; from the fifth on they may be missing."""


def inspect_directory(path: Path, base: Path | None = None) -> dict[str, Any]:
    """Describe a base, or an adapter and its base, which by default is the one that it names."""
    if not os.path.isdir(path):
        problem = "is a file" if os.path.exists(path) else "does not exist"
        raise UserError(f"{short(path)} {problem}, expected the directory of a model or an adapter")
    adapter = None
    is_adapter = (path / ADAPTER_CONFIG).exists() or (path / STREAM_CONFIG).exists()
    if is_adapter and not any(path.glob("model*.safetensors")):
        adapter = describe(path)
        named = adapter.base_model
        if base is None and named and os.path.exists(os.path.join(named, "config.json")):
            base = Path(named)
    elif (path / "config.json").exists():
        if base is not None:
            raise UserError(f"{path} is a base model, and {base} was given as an adapter's base")
        base = path
    else:
        raise UserError(
            f"{path} has neither config.json nor {ADAPTER_CONFIG} nor {STREAM_CONFIG}, "
            "expected the directory of a model or an adapter"
        )
    described: dict[str, Any] = {"base": base and describe_base(base)}
    described["adapter"] = adapter and describe_adapter(adapter)
    notes: list[str] = []
    if base is None:
        notes.append(f"the base ({short(named) or 'unnamed'}) is not a directory here")
    elif refusal := described["base"]["refusal"]:
        notes.append(f"streams cannot run on this model: {refusal}")
    if base is not None and adapter is not None:
        try:
            adapter.check_base(read_json(base / "config.json"))
        except UserError as error:
            notes.append(str(error))
    return {**described, "notes": notes}


def describe_adapter(adapter: AdapterDescription) -> dict[str, Any]:
    """Describe an adapter; its parameters are counted by part."""
    headers = {**adapter.stream_headers(), **adapter.lora_headers()}
    modules = _lora_modules(headers)
    rank, scale = adapter.rank_and_scale() if modules else (None, None)
    files = [file for file in (adapter.stream_file, adapter.lora_file) if file is not None]
    parameters = Counter(streams=0, head=0, pruner=0, lora=0, other=0)
    for name, (shape, _) in headers.items():
        if name != VOCABULARY:  # a list, nothing that is trained
            parameters[_part(name)] += prod(shape)
    return {
        "path": str(adapter.path),
        "format": adapter.format,
        "base_model": adapter.base_model,
        "streams": adapter.stream_config and adapter.stream_config.to_dict(),
        "lora_rank": rank,
        "lora_scale": scale,
        "lora_modules": modules,
        "parameters": dict(parameters),
        "bytes": sum(file.stat().st_size for file in files),
    }


def _lora_modules(names: Iterable[str]) -> list[str]:
    """List the linear layers with LoRA by path in a layer, such as ``self_attn.q_proj``."""
    paths = {match[1] for match in map(_LORA_TENSOR.fullmatch, names) if match}
    return sorted({re.sub(r"^base_model\.model\.|.*\blayers\.\d+\.", "", p) for p in paths})


def _part(name: str) -> str:
    first, *_ = name.replace("streams.head.", "head.").split(".")
    if first in ("streams", "head", "pruner"):
        return first
    return "lora" if _LORA_TENSOR.fullmatch(name) else "other"


def describe_base(directory: Path) -> dict[str, Any]:
    """Describe a base model; ``refusal`` says why streams cannot run on it."""
    path = directory / "config.json"
    outer, loaded = read_json(path), model_headers(chosen_files(directory, WEIGHTS))
    outer = tied_where_untold(outer, loaded)
    for name in ("text_config", "quantization"):
        OBJECT.check(f"{path}: {name}", outer.get(name) or {})
    config = completed(outer | (outer.get("text_config") or {}))
    sizes: dict[str, Any] = {name: config.get(name) for name in _SIZES}
    for name, value in sizes.items():
        if name in _SIZES[:4] or value is not None:
            COUNT.check(f"{path}: {name}", value)
    heads = sizes["num_attention_heads"]
    sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or heads
    sizes["head_dim"] = sizes["head_dim"] or sizes["hidden_size"] // heads
    tied = bool(config.get("tie_word_embeddings"))
    files = weight_files(directory)
    headers = {  # of what mlx-lm loads: neither a tied head that was stored, nor tables
        name: header
        for name, header in loaded.items()
        if not name.endswith("rotary_emb.inv_freq") and not (tied and name == "lm_head.weight")
    }
    refusal = None
    try:
        check_config(outer, headers)
    except UserError as error:
        refusal = str(error)
    stored_as = _parameters(path, outer, headers)
    return {
        "path": str(directory),
        "architecture": str(outer.get("model_type")),
        "refusal": refusal,
        **sizes,
        "tied_head": tied,
        "parameters": stored_as.total(),
        "stored_as": dict(stored_as.most_common()),
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
        "fingerprint": fingerprint(outer),
    }


def _parameters(path: Path, config: Mapping[str, Any], headers: Headers) -> Counter[str]:
    """Count parameters as they were before packing; bits follow from the words per scale."""
    settings, foreign = config.get("quantization") or {}, config.get("quantization_config")
    if foreign is not None and not settings and not fp8_tensor(headers):
        raise UserError(
            f"{path}: the weights are quantized by {shown(foreign)}, expected MLX's own "
            "quantization or none"
        )
    counts: Counter[str] = Counter()
    for name, (shape, dtype) in headers.items():
        layer, _, last = name.rpartition(".")
        scales = headers.get(f"{layer}.scales")
        if not settings or scales is None or headers.get(f"{layer}.weight", scales)[1] != "U32":
            counts[dtype] += prod(shape)
        elif last == "weight":
            of_layer = settings.get(layer)
            size: Any = (of_layer if isinstance(of_layer, dict) else settings).get("group_size")
            COUNT.check(f"{path}: group_size", size)
            count = prod(scales[0]) * size
            counts[f"{32 * prod(shape) / max(count, 1):g} bits, group {size}"] += count
        elif last not in ("scales", "biases"):
            counts[dtype] += prod(shape)
    return counts
