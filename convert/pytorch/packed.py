"""Weights that MLX has quantized, in PyTorch: a model is trained as it will run.

MLX packs the numbers of a row into unsigned integers of 32 bits, the first number lowest, and keeps
a scale and a bias for each group of them: a weight is ``scale * number + bias``. Linear layers of
the decoder stay packed and are expanded one at a time while they compute; embeddings, which rows
are taken from, and the head, which the loss takes slices of, are expanded when they are loaded.
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
_NUMBERS_AT_ONCE = 1 << 19


def is_packed(config: Mapping[str, Any]) -> bool:
    """Tell whether a ``config.json`` is that of a model that MLX has quantized."""
    return isinstance(config.get("quantization"), Mapping)


class Room:
    """Memory that the expanded matrices of many layers take in turn.

    A matrix allocated for each product would leave holes that activations then split, until the
    matrices of all layers are in memory.

    Args:
        dtype: of the matrices.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(0, dtype=dtype)

    def matrix(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """A matrix of whatever numbers, the caller's until the next one is asked for."""
        size = rows * columns
        if len(self._memory) < size or self._memory.device != device:
            self._memory = self._memory.new_empty(size, device=device)
        return self._memory[:size].view(rows, columns)


class PackedLinear(torch.nn.Linear):
    """A frozen linear layer that holds its weights as MLX packs them.

    A product expands them and keeps none of it: the backward pass expands them again.

    Args:
        weight, scales, biases: see ``expand``.
        bits: of a number, one of ``BITS``.
        room: what weights are expanded into.
    """

    def __init__(
        self, weight: Tensor, scales: Tensor, biases: Tensor, bits: int, room: Room
    ) -> None:
        torch.nn.Module.__init__(self)
        self.out_features, self.in_features = len(weight), weight.shape[1] * 32 // bits
        self.bits, self.room = bits, room
        self.register_buffer("packed", weight.view(torch.int32))
        self.register_buffer("scales", scales)
        self.register_buffer("biases", biases)
        self.register_parameter("bias", None)

    @property
    def weight(self) -> Tensor:
        """The weights (out, in), anew."""
        return self.expanded().clone()

    def expanded(self) -> Tensor:
        """The weights (out, in), until another layer's are expanded."""
        out = self.room.matrix(self.out_features, self.in_features, self.packed.device)
        return expand(self.packed, self.scales, self.biases, self.bits, out)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        y = _Product.apply(x, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """``x`` times a packed layer's weights, which get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PackedLinear) -> Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return torch.nn.functional.linear(x, layer.expanded())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient @ ctx.layer.expanded().to(gradient.dtype)).to(ctx.dtype), None


def read_packed(
    files: list[Path], config: Mapping[str, Any], dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, PackedLinear]]:
    """The tensors of a quantized model, one file and one tensor after the other.

    Args:
        files: safetensors files.
        config: the model's ``config.json``.
        dtype: that matrices are expanded to, all but embeddings.

    Returns:
        Tensors by name, and the decoder's packed linear layers by name, without what is added to
        their products: that is among the tensors.

    Raises:
        UserError: they are quantized in a way that is not known here.
    """
    weights: dict[str, Tensor] = {}
    layers: dict[str, PackedLinear] = {}
    room = Room(dtype)
    for file in files:
        tensors = load_file(file)
        for name in [name for name in tensors if name.endswith(".scales")]:
            path = name.removesuffix(".scales")
            bits = _bits(file, path, config["quantization"])
            scales = tensors.pop(name)
            weight, biases = (tensors.pop(f"{path}.{part}", None) for part in ("weight", "biases"))
            if weight is None or biases is None:
                raise UserError(
                    f"{file}: {path} has scales, expected weight and biases beside them"
                )
            try:
                expanded = expand(weight, scales, biases, bits)
            except RuntimeError:
                shapes = ", ".join(str(tuple(part.shape)) for part in (weight, scales, biases))
                raise UserError(
                    f"{file}: {path} has weight, scales and biases of the shapes {shapes}, "
                    f"expected those of {bits} bits"
                ) from None
            if not torch.isfinite(expanded).all():
                raise UserError(f"{file}: {path} holds NaN or infinity, expected finite numbers")
            if ".layers." in path:
                layers[path] = PackedLinear(weight, scales, biases, bits, room)
            else:
                held = torch.float32 if path.endswith("embed_tokens") else dtype
                weights[f"{path}.weight"] = expanded.to(held)
        weights |= tensors
    return weights, layers


def expand(
    weight: Tensor, scales: Tensor, biases: Tensor, bits: int, out: Tensor | None = None
) -> Tensor:
    """A matrix (out, in) in float32.

    Args:
        weight: (out, in * bits / 32) of integers of 32 bits.
        scales, biases: (out, groups).
        bits: of a number, one of ``BITS``.
        out: (out, in) in any floating dtype, to be written to; ``None``: a new one.
    """
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=weight.device)
    if out is None:
        out = scales.new_empty(len(weight), weight.shape[1] * len(shifts), dtype=torch.float32)
    rows = max(1, _NUMBERS_AT_ONCE // out.shape[1])
    for begin in range(0, len(weight), rows):
        part = slice(begin, begin + rows)
        numbers = weight[part].view(torch.int32)[..., None] >> shifts & (1 << bits) - 1
        groups = numbers.reshape(*scales[part].shape, -1).float()
        groups = groups * scales[part].float()[..., None] + biases[part].float()[..., None]
        out[part] = groups.flatten(1)
    return out


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
