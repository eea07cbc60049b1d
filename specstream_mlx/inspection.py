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

from .adapters.description import ADAPTER_CONFIG, STREAM_CONFIG, AdapterDescription, describe
from .errors import VOCABULARY, UserError, check_integer, shown
from .files import Headers, model_headers, read_json, short
from .loading import WEIGHTS, weight_files
from .models.architectures import check_config, completed, tied_where_untold
from .models.fingerprint import fingerprint

_LORA_TENSOR = re.compile(
    r"(.*)\.(?:lora_(?:a|b|[AB](?:\.\w+)?\.weight|embedding_[AB]|magnitude_vector(?:\.\w+)*)|m)"
)
"""Of mlx-lm or PEFT; ``m`` and ``lora_magnitude_vector`` are DoRA's."""
_BITS = (2, 3, 4, 5, 6, 8)
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_OPTIONAL_SIZES = (
    *("intermediate_size", "num_key_value_heads", "head_dim", "max_position_embeddings"),
)


def inspect_directory(path: Path, base: Path | None = None) -> dict[str, Any]:
    """Find out whether ``path`` is a base model or an adapter, and describe it.

    Args:
        path: a base (Hugging Face's or mlx-lm's format), or an adapter, converted or of PyTorch.
        base: the base of an adapter; by default the one it names, if that is a directory.

    Returns:
        ``base`` (``describe_base``) and ``adapter`` (``describe_adapter``), ``None`` where unknown;
        and ``notes``, sentences about what is missing or does not fit.
    """
    if not os.path.isdir(path):
        found = "is a file" if os.path.exists(path) else "does not exist"
        raise UserError(f"{short(path)} {found}, expected the directory of a model or an adapter")
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
    notes: list[str] = []
    described = adapter and describe_adapter(adapter)
    description: dict[str, Any] = {"base": None, "adapter": described, "notes": notes}
    if base is None:
        name = short(named) or "unnamed"
        notes.append(f"the base ({name}) is not a directory here")
        return description
    description["base"] = describe_base(base)
    if refusal := description["base"]["refusal"]:
        notes.append(f"streams cannot run on this model: {refusal}")
    if adapter is not None:
        try:
            adapter.check_base(read_json(base / "config.json"))
        except UserError as error:
            notes.append(str(error))
    return description


# Adapters -----------------------------------------------------------------------------------


def describe_adapter(adapter: AdapterDescription) -> dict[str, Any]:
    """Describe an adapter.

    ``format`` is ``mlx``, or ``pytorch`` before conversion; ``streams`` the fields of
    ``StreamConfig``; ``lora_modules`` the linear layers with LoRA, layer numbers left out;
    ``parameters`` are counted by part, of which ``head`` is the conditioned one of streams.
    """
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
    matches = (_LORA_TENSOR.fullmatch(name) for name in names)
    paths = {match[1].removeprefix("base_model.model.") for match in matches if match}
    return sorted({re.sub(r".*\blayers\.\d+\.", "", path) for path in paths})


def _part(name: str) -> str:
    """Name the part of an adapter that a tensor belongs to."""
    if name.startswith("streams.head."):
        return "head"
    part = name.split(".")[0]
    if part in ("streams", "pruner"):
        return part
    return "lora" if _LORA_TENSOR.fullmatch(name) else "other"


# Base models --------------------------------------------------------------------------------


def describe_base(directory: Path) -> dict[str, Any]:
    """Describe a base model.

    ``refusal`` says why streams cannot run on it; ``parameters`` counts neither a tied head twice
    nor scales of the quantization, ``stored_as`` the same by dtype, or by bits and group size such
    as ``4 bits, group 64``; ``fingerprint`` is what adapters are compared with.
    """
    path = directory / "config.json"
    outer, loaded = read_json(path), model_headers(sorted(directory.glob(WEIGHTS)))
    outer = tied_where_untold(outer, loaded)
    config = completed(outer | _object(path, outer, "text_config"))
    sizes: dict[str, Any] = {name: _integer(path, config, name) for name in _SIZES}
    for name in _OPTIONAL_SIZES:
        sizes[name] = None if config.get(name) is None else _integer(path, config, name)
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


def _integer(path: Path, config: Mapping[str, Any], name: str) -> int:
    """Read a field that must be an integer of at least 1."""
    check_integer(f"{path}: {name}", config.get(name))
    return config[name]


def _object(path: Path, config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Read a field that must be an object, empty if it is missing."""
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise UserError(f"{path}: {name} is {shown(value)}, expected an object")
    return value


def _parameters(path: Path, config: Mapping[str, Any], headers: Headers) -> Counter[str]:
    """Count parameters as they were before packing; bits follow from the words per scale."""
    settings = _object(path, config, "quantization")
    foreign = config.get("quantization_config")
    if settings:
        for name in ("bits", "group_size"):
            _integer(path, settings, name)
    elif foreign is not None:
        method = foreign.get("quant_method") if isinstance(foreign, dict) else foreign
        raise UserError(
            f"{path}: the weights are quantized by {shown(method)}, "
            "expected MLX's own quantization or none"
        )
    counts: Counter[str] = Counter()
    for name, (shape, dtype) in headers.items():
        layer, _, last = name.rpartition(".")
        scales = headers.get(f"{layer}.scales")
        if not settings or scales is None or headers.get(f"{layer}.weight", scales)[1] != "U32":
            counts[dtype] += prod(shape)
        elif last == "weight":
            listed = settings.get(layer)
            size = _integer(path, listed if isinstance(listed, dict) else settings, "group_size")
            groups = (0, *scales[0])[-1]
            if not groups or not shape:
                raise UserError(f"{path}: {name} is packed, expected groups that have scales")
            bits, remainder = divmod(shape[-1] * 32, groups * size)
            if remainder or bits not in _BITS:
                raise UserError(
                    f"{path}: {name} has {shape[-1]} words for {groups} groups, "
                    f"which is no number of bits with the group size {size} of quantization"
                )
            counts[f"{bits} bits, group {size}"] += prod(shape[:-1]) * groups * size
        elif last not in ("scales", "biases"):
            counts[dtype] += prod(shape)
    return counts
