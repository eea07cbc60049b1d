"""A base model's Hugging Face directory to mlx-lm's format, optionally quantized."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import quantize_model, save

from specstream_mlx.base_model import read_model, read_tokenizer
from specstream_mlx.config import UserError

from .staging import staged_directory

BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
DTYPES = ("float16", "bfloat16", "float32")

Progress = Callable[[int, int], None]
"""Called with the number of layers done and of all layers."""


def convert_base(
    source: Path,
    target: Path,
    bits: int | None = None,
    group_size: int = 64,
    dtype: str | None = None,
    *,
    progress: Progress = lambda done, total: None,
    check: Callable[[Path], None] = lambda directory: None,
) -> None:
    """Write ``source`` in MLX format to ``target``; mlx-lm's own functions do the work.

    Args:
        source: directory with ``config.json``, safetensors in one file or several, and tokenizer
            files.
        target: replaced if it exists.
        bits: 4 or 8 for affine quantization; ``None`` for none.
        group_size: 32, 64 or 128.
        dtype: of what is not quantized; ``None`` keeps the source's.
        progress: called for each layer that has been quantized.
        check: called with the finished directory before it takes its place.

    Raises:
        UserError: the source cannot be read as a model, or not be quantized so.
    """
    for name, value, allowed in (
        ("bits", bits, (None, *BITS)),
        ("group_size", group_size, GROUP_SIZES),
        ("dtype", dtype, (None, *DTYPES)),
    ):
        if value not in allowed:
            expected = ", ".join(str(choice) for choice in allowed if choice is not None)
            raise UserError(f"{name} is {value}, expected one of {expected}")
    model, config = read_model(source)
    tokenizer = read_tokenizer(source, config)
    with staged_directory(target) as scratch:
        if dtype is not None:
            model.set_dtype(getattr(mx, dtype))
            config.pop("torch_dtype", None)
            config["dtype"] = dtype
        if bits is not None:
            model, config = _quantize(source, model, config, bits, group_size, progress)
        save(scratch, source, model, tokenizer, config)
        (scratch / "README.md").unlink(missing_ok=True)  # mlx-lm's model card, for uploads
        check(scratch)


def _quantize(
    source: Path,
    model: nn.Module,
    config: dict[str, Any],
    bits: int,
    group_size: int,
    progress: Progress,
) -> tuple[nn.Module, dict[str, Any]]:
    if "quantization" in config or "quantization_config" in config:
        raise UserError(f"{source} is quantized already, expected float weights to quantize")
    with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints the bits per weight
        model, config = quantize_model(model, config, group_size, bits)
    if not any(isinstance(module, nn.QuantizedLinear) for _, module in model.named_modules()):
        raise UserError(
            f"{source} has no layer whose width is a multiple of {group_size}, "
            "expected a group size that divides some"
        )
    for number, layer in enumerate(model.layers, 1):  # so that one float layer is held at a time
        mx.eval(layer.parameters())
        progress(number, len(model.layers))
    return model, config
