"""A PyTorch-side adapter directory to an MLX adapter directory.

peft's ``lora_A`` (r, in) and ``lora_B`` (out, r) become mlx-lm's ``lora_a`` (in, r) and ``lora_b``
(r, out); streams and pruner keep their names and shapes. Reading safetensors needs no torch.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from specstream_mlx.adapters import (
    AdapterError,
    check_tensors,
    linear_shapes,
    read_json,
    tensor_headers,
    write_adapter,
)
from specstream_mlx.base_model import read_config, read_model
from specstream_mlx.config import ConfigError, StreamConfig, fingerprint

from .staging import staged_directory

STREAM_CONFIG = "speculative_streaming.json"
STREAM_TENSORS = "speculative_streaming.safetensors"
LORA_CONFIG = "adapter_config.json"
LORA_TENSORS = "adapter_model.safetensors"

_PEFT_NAME = re.compile(
    r"base_model\.model\.(?P<module>.*layers\.(?P<layer>\d+)\.(?P<key>.+))"
    r"\.lora_(?P<side>[AB])\.weight"
)
_DTYPES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
# Variants of LoRA that compute, or start from, something else than the base plus B A.
_UNSUPPORTED = (
    *("use_dora", "use_qalora", "use_bdlora", "lora_bias", "modules_to_save", "layer_replication"),
    *("trainable_token_indices", "target_parameters", "alora_invocation_tokens", "arrow_config"),
    *("kasa_config", "monteclora_config", "velora_config"),
)
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
_NO_LORA = {"rank": 0, "scale": 0.0, "dropout": 0.0, "keys": []}


def convert_adapter(
    source: Path,
    base: Path,
    target: Path,
    dtype: str | None = None,
    *,
    check: Callable[[Path], None] = lambda directory: None,
) -> None:
    """Write the MLX form of a PyTorch-side adapter directory.

    Args:
        source: PEFT files, speculative_streaming files, or both.
        base: directory of the base that it was trained on, in either format.
        target: replaced if it exists.
        dtype: of the written tensors; ``None`` keeps the source's.
        check: called with the finished directory before it takes its place.

    Raises:
        UserError: one sentence with the file, the tensor, what was found and what was expected.
    """
    if not source.is_dir():
        raise AdapterError(f"the adapter directory {source} does not exist")
    has_streams = (source / STREAM_CONFIG).exists() or _weights(source / STREAM_TENSORS).exists()
    has_lora = (source / LORA_CONFIG).exists() or _weights(source / LORA_TENSORS).exists()
    if not has_streams and not has_lora:
        raise AdapterError(f"{source} has neither {STREAM_CONFIG} nor {LORA_CONFIG}")
    stream_config, streams = _read_streams(source, base) if has_streams else (None, {})
    if has_lora and stream_config is not None and stream_config.mode == "lossless":
        raise AdapterError(
            f"{source} has LoRA in lossless mode, which takes the base as it is: "
            "merge the LoRA into the base first"
        )
    lora, parameters, count = _read_lora(source, base) if has_lora else ({}, _NO_LORA, 0)
    if dtype is not None:
        lora, streams = (
            {name: tensor.astype(getattr(mx, dtype)) for name, tensor in tensors.items()}
            for tensors in (lora, streams)
        )
    with staged_directory(target) as scratch:
        write_adapter(scratch, lora, parameters, count, stream_config, streams)
        check(scratch)


def _weights(path: Path) -> Path:
    """``path``, or the ``.bin`` file in its place."""
    pickled = path.with_suffix(".bin")
    return pickled if pickled.exists() and not path.exists() else path


def _read_tensors(path: Path) -> tuple[dict[str, tuple[tuple[int, ...], str]], dict[str, mx.array]]:
    """A weight file's headers, as ``tensor_headers`` gives them, and its tensors.

    ``.bin`` files are read by torch, which then runs no code that they hold.
    """
    if path.suffix != ".bin":
        headers = tensor_headers(path)
        odd = [name for name, (_, dtype) in headers.items() if dtype not in _DTYPES.values()]
        return headers, {} if odd else dict(mx.load(str(path)))
    from . import formats

    tensors = {}
    for name, tensor in formats.read_tensors(path).items():
        dtype = getattr(mx, str(tensor.dtype).removeprefix("torch."), None)
        tensors[name] = mx.array(tensor.float().numpy()).astype(dtype or mx.float32)
    return {n: (tuple(t.shape), _DTYPES.get(t.dtype, str(t.dtype))) for n, t in tensors.items()}, (
        tensors
    )


def _read_streams(source: Path, base: Path) -> tuple[StreamConfig, dict[str, mx.array]]:
    """Streams and pruner, checked against their configuration and the base."""
    path = source / STREAM_CONFIG
    try:
        config = StreamConfig.from_dict(read_json(path))
    except ConfigError as error:
        raise AdapterError(f"{path}: {error}") from None
    base_config = read_config(base)
    found, expected = config.base_fingerprint, fingerprint(base_config)
    if found and found != expected:
        raise AdapterError(
            f"{path}: the adapter was trained on another base ({config.base_model or 'unnamed'}, "
            f"fingerprint {found}), expected fingerprint {expected}, that of {base}"
        )
    for field in ("hidden_size", "num_hidden_layers"):
        if getattr(config, field) != base_config.get(field):
            raise AdapterError(
                f"{path}: {field} is {getattr(config, field)}, "
                f"expected {base_config.get(field)}, that of {base}"
            )
    path = _weights(source / STREAM_TENSORS)
    headers, tensors = _read_tensors(path)
    check_tensors(path, headers, config.tensor_shapes())
    return config, tensors


def _read_lora(source: Path, base: Path) -> tuple[dict[str, mx.array], dict[str, Any], int]:
    """PEFT's LoRA in mlx-lm's terms.

    mlx-lm adapts the same modules in all of the last layers; where PEFT left one out, it gets a
    LoRA of zeros.

    Returns:
        (tensors, ``lora_parameters``, layers with LoRA counted from the last).
    """
    path = source / LORA_CONFIG
    config = read_json(path)
    rank, scale = _rank_and_scale(path, config)
    model, _ = read_model(base)
    shapes, count = linear_shapes(model), len(model.layers)
    path = _weights(source / LORA_TENSORS)
    headers, found = _read_tensors(path)
    expected, places, tensors = {}, {}, {}
    for name in headers:
        match = _PEFT_NAME.fullmatch(name)
        if match is None or match["module"] not in shapes:
            raise AdapterError(
                f"{path}: {name} is not supported, expected LoRA on linear layers of {base}"
            )
        rows, columns = shapes[match["module"]]
        stem = name.removesuffix(f"{match['side']}.weight")
        expected |= {f"{stem}A.weight": (rank, columns), f"{stem}B.weight": (rows, rank)}
        places.setdefault(match["key"], set()).add(int(match["layer"]))
    check_tensors(path, headers, expected)
    for name, tensor in found.items():
        match = _PEFT_NAME.fullmatch(name)
        tensors[f"{match['module']}.lora_{match['side'].lower()}"] = mx.contiguous(tensor.T)
    if not tensors:
        raise AdapterError(f"{path} holds no tensors, expected LoRA")
    first = min(layer for layers in places.values() for layer in layers)
    for module, (rows, columns) in shapes.items():
        _, dot, place = module.rpartition("layers.")
        layer, _, key = place.partition(".")
        if dot and key in places and int(layer) >= first and f"{module}.lora_a" not in tensors:
            tensors[f"{module}.lora_a"] = mx.zeros((columns, rank))
            tensors[f"{module}.lora_b"] = mx.zeros((rank, rows))
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": sorted(places)}
    return tensors, parameters, count - first


def _rank_and_scale(path: Path, config: dict[str, Any]) -> tuple[int, float]:
    """The rank of PEFT's LoRA and the factor on ``B A``.

    Raises:
        AdapterError: the adapter is not a LoRA with one rank and one scale for all modules.
    """
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    for field in ("rank_pattern", "alpha_pattern"):
        if config.get(field):
            raise AdapterError(
                f"{path}: {field} gives modules ranks or scales of their own, "
                "expected the same for all"
            )
    for field in _UNSUPPORTED:
        if config.get(field):
            raise AdapterError(f"{path}: {field} is {config[field]!r}, which is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{path}: bias is {config['bias']!r}, expected 'none'")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise AdapterError(
            f"{path}: init_lora_weights is {start!r}, which changes the base's weights, "
            f"expected one of {_PLAIN_STARTS}"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise AdapterError(f"{path}: r is {rank!r}, expected an integer of at least 1")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise AdapterError(f"{path}: lora_alpha is {alpha!r}, expected a number")
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
