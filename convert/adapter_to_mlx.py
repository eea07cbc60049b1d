"""A PyTorch-side adapter directory to an MLX adapter directory.

peft's ``lora_A`` (r, in) and ``lora_B`` (out, r) become mlx-lm's ``lora_a`` (in, r) and ``lora_b``
(r, out); streams and pruner keep their names and shapes.
"""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
from safetensors import SafetensorError

from specstream_mlx.adapters import read_json, tensor_headers, write_adapter
from specstream_mlx.config import ConfigError, StreamConfig, UserError, fingerprint

from .staging import staged_directory

STREAM_CONFIG = "speculative_streaming.json"
STREAM_TENSORS = "speculative_streaming.safetensors"
LORA_CONFIG = "adapter_config.json"
LORA_TENSORS = "adapter_model.safetensors"

_PREFIX = "base_model.model."


def _read_tensors(path: Path) -> dict[str, mx.array]:
    """Tensors of a safetensors file, or of a ``.bin`` one through torch's ``weights_only``."""
    pickled = path.with_suffix(".bin")
    if not path.exists() and pickled.exists():
        from .formats import read_tensors

        return {name: mx.array(t.float().numpy()) for name, t in read_tensors(pickled).items()}
    tensor_headers(path)
    try:
        return dict(mx.load(str(path)))
    except (RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _lora_scale(path: Path, config: dict[str, Any]) -> float:
    """``alpha / r``, or ``alpha / sqrt(r)`` for rank-stabilised LoRA."""
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise UserError(f"{path}: r is {rank!r} and lora_alpha {alpha!r}, expected numbers")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _refuse_unsupported(path: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    for field, plain in (
        ("rank_pattern", ({}, None)),
        ("alpha_pattern", ({}, None)),
        ("modules_to_save", ([], None)),
        ("bias", ("none", None)),
        ("use_dora", (False, None)),
    ):
        if config.get(field) not in plain:
            raise UserError(f"{path}: {field} is {config[field]!r}, which is not supported yet")


def convert_lora(
    directory: Path, num_hidden_layers: int
) -> tuple[dict[str, mx.array], dict[str, Any], int]:
    """peft's LoRA tensors in mlx-lm's terms.

    Args:
        directory: a PEFT directory.
        num_hidden_layers: layers of the base.

    Returns:
        (tensors, ``lora_parameters``, layers with LoRA counted from the last).

    Raises:
        UserError: a variant of LoRA that mlx-lm lacks, or a tensor whose place is unknown.
    """
    config_path, path = directory / LORA_CONFIG, directory / LORA_TENSORS
    config = read_json(config_path)
    _refuse_unsupported(config_path, config)
    tensors: dict[str, mx.array] = {}
    keys, layers = set(), set()
    for name, tensor in _read_tensors(path).items():
        stem, _, kind = name.removesuffix(".weight").rpartition(".")
        parts = stem.removeprefix(_PREFIX).split(".")
        if kind not in ("lora_A", "lora_B") or "layers" not in parts:
            raise UserError(f"{path}: tensor {name} is not LoRA of a decoder layer")
        place = parts.index("layers")
        layers.add(int(parts[place + 1]))
        keys.add(".".join(parts[place + 2 :]))
        tensors[f"{'.'.join(parts)}.{kind.lower()}"] = mx.contiguous(tensor.T)
    count = num_hidden_layers - min(layers)
    if layers != set(range(num_hidden_layers - count, num_hidden_layers)):
        raise UserError(f"{path} has LoRA in layers {sorted(layers)}, expected the last ones")
    parameters = {
        "rank": config["r"],
        "scale": _lora_scale(config_path, config),
        "dropout": 0.0,
        "keys": sorted(keys),
    }
    return tensors, parameters, count


def convert_adapter(source: Path, base: Path, target: Path, dtype: str | None = None) -> None:
    """Write the MLX form of a PyTorch-side adapter directory.

    Args:
        source: PEFT files, speculative_streaming files, or both.
        base: directory of the base, in either format; its ``config.json`` is compared.
        target: replaced if it exists.
        dtype: of the written tensors; ``None`` keeps the source's.

    Raises:
        UserError: one sentence with the file, the tensor, what was found and what was expected.
    """
    if not source.is_dir():
        raise UserError(f"the adapter directory {source} does not exist")
    has_streams = (source / STREAM_CONFIG).exists()
    has_lora = (source / LORA_CONFIG).exists()
    if not has_streams and not has_lora:
        raise UserError(f"{source} has neither {STREAM_CONFIG} nor {LORA_CONFIG}")
    base_config = read_json(base / "config.json")
    stream_config, streams = _read_streams(source, base, base_config) if has_streams else (None, {})
    lora, parameters, count = {}, {"rank": 1, "scale": 1.0, "dropout": 0.0, "keys": []}, 0
    if has_lora:
        lora, parameters, count = convert_lora(source, base_config["num_hidden_layers"])
    if dtype is not None:
        wanted = getattr(mx, dtype)
        lora = {name: tensor.astype(wanted) for name, tensor in lora.items()}
        streams = {name: tensor.astype(wanted) for name, tensor in streams.items()}
    with staged_directory(target) as scratch:
        write_adapter(scratch, lora, parameters, count, stream_config, streams)


def _read_streams(
    source: Path, base: Path, base_config: dict[str, Any]
) -> tuple[StreamConfig, dict[str, mx.array]]:
    path = source / STREAM_CONFIG
    try:
        config = StreamConfig.from_dict(read_json(path))
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    expected = fingerprint(base_config)
    if config.base_fingerprint and config.base_fingerprint != expected:
        raise UserError(
            f"{path}: the adapter was trained on {config.base_model!r} with fingerprint "
            f"{config.base_fingerprint}, {base} has {expected}"
        )
    tensors_path = source / STREAM_TENSORS
    tensors = _read_tensors(tensors_path)
    shapes = config.tensor_shapes()
    for name in sorted(shapes.keys() ^ tensors.keys()):
        what = "missing" if name in shapes else "unexpected"
        raise UserError(f"{tensors_path}: tensor {name} is {what}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise UserError(
                f"{tensors_path}: {name} has shape {tensors[name].shape}, expected {shape}"
            )
    return config, tensors
