"""Weights that MLX has quantized, expanded for PyTorch: a model is trained as it will run.

MLX packs the numbers of a row into unsigned integers of 32 bits, the first number lowest, and keeps
a scale and a bias for each group of them: a weight is ``scale * number + bias``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specstream_mlx.config import UserError, shown

BITS = 2, 4, 8
"""Those of which a packed integer holds a whole number."""


def is_packed(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of a model that MLX has quantized."""
    return isinstance(config.get("quantization"), Mapping)


def expanded_weights(
    files: list[Path], config: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The tensors of a quantized model by name, one file and one tensor after the other.

    Args:
        files: safetensors files.
        config: the model's ``config.json``.
        dtype: that expanded matrices are held in, all but embeddings; others keep their own.

    Raises:
        UserError: they are quantized in a way that is not known here.
    """
    weights: dict[str, Tensor] = {}
    for file in files:
        tensors = load_file(file)
        for name in [name for name in tensors if name.endswith(".scales")]:
            path = name.removesuffix(".scales")
            bits = _bits(file, path, config["quantization"])
            parts = [tensors.pop(f"{path}.{part}", None) for part in ("weight", "scales", "biases")]
            if any(part is None for part in parts):
                raise UserError(
                    f"{file}: {path} has scales, expected weight and biases beside them"
                )
            held = torch.float32 if path.endswith("embed_tokens") else dtype
            try:
                weights[f"{path}.weight"] = expand(*parts, bits).to(held)
            except RuntimeError:
                shapes = ", ".join(str(tuple(part.shape)) for part in parts)
                raise UserError(
                    f"{file}: {path} has weight, scales and biases of the shapes {shapes}, "
                    f"expected those of {bits} bits"
                ) from None
        weights |= tensors
    return weights


def expand(weight: Tensor, scales: Tensor, biases: Tensor, bits: int) -> Tensor:
    """A matrix (out, in) in float32.

    Args:
        weight: (out, in * bits / 32) of 32 bits each.
        scales, biases: (out, groups).
        bits: of a number, one of ``BITS``.
    """
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = weight.view(torch.int32)[..., None] >> shifts & (1 << bits) - 1
    groups = numbers.reshape(*scales.shape, -1).float()
    return (groups * scales.float()[..., None] + biases.float()[..., None]).flatten(1)


def _bits(file: Path, path: str, quantization: Mapping[str, Any]) -> int:
    """The bits of a layer, which may have fields of its own."""
    own = quantization.get(path)
    fields = own if isinstance(own, Mapping) else quantization
    mode, bits = fields.get("mode", "affine"), fields.get("bits")
    if mode != "affine" or bits not in BITS:
        raise UserError(
            f"{file}: {path} is quantized with mode {shown(mode)} and bits {shown(bits)}, expected "
            f"'affine' and one of {BITS}"
        )
    return bits
