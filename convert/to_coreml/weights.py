"""Weights as Core ML's constants: MLX's quantized groups stay what they are, all else is fp16.

MLX holds a group as ``scale * q + bias``, Core ML as ``scale * (q - offset)``. In MLX's own way of
quantizing ``bias / scale`` is an integer up to rounding, and so can the offset be, of the data's
type. In others it is any number: groups of GGUF or of a converted model begin at their least
weight. An integer would then shift all weights of a group the same way, which sums up, so the
offset is float16. Where scale is negative, q counts from the other end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

_IN_FILE = 10
"""Elements from which on coremltools writes a constant into the file of weights."""

_ROWS = 1024
"""Rows that are unpacked at a time, since MLX unpacks into floats."""

_TINY = 6e-8
"""Half precision's smallest number; what is less is no error of an encoding."""

_WHOLE = 0.05
"""Steps by which a group's offset may be off an integer to be taken for one: all weights of the
group are off by as much, so it sums up."""

_WORST = 0.25
"""Steps by which an encoded weight may be off; beyond that it is written in float16."""


@dataclass(frozen=True)
class Groups:
    """A quantized matrix as Core ML holds it: ``scale * (q - offset)``.

    The middle of q is 0, so that offsets are small and float16 is fine there.
    """

    q: np.ndarray  # (out, in) int8
    scale: np.ndarray  # (out, groups) float16
    offset: np.ndarray  # (out, groups) int8, or float16 where one is no integer of the type
    bits: int  # 4 or 8, of the type that is to hold q
    uneven: int  # groups whose offset is no integer of the type


Value = np.ndarray | Groups


@dataclass(frozen=True)
class Encoding:
    """How a tensor was written."""

    name: str
    shape: tuple[int, ...]
    form: str  # int4, int8, either with float offsets, or fp16
    nbytes: int  # in the file of weights
    groups: int = 0  # that share a scale
    uneven: int = 0  # those of them whose offset is no integer of the type


def unpacked(module: nn.Module) -> np.ndarray:
    """(out, in) uint8: the integers of an affinely quantized layer or embedding."""
    kind = {"group_size": module.group_size, "bits": module.bits}
    parts = []
    for row in range(0, len(module.scales), _ROWS):
        scales, weight = module.scales[row : row + _ROWS], module.weight[row : row + _ROWS]
        integers = mx.dequantize(weight, mx.ones_like(scales), mx.zeros_like(scales), **kind)
        parts.append(np.array(integers.astype(mx.uint8)))
    return np.concatenate(parts)


def encode(module: nn.Module) -> Groups | None:
    """Bring an affinely quantized matrix into Core ML's form; ``None``: it is too far off.

    Offsets are integers if all groups have one, else float16.
    """
    bits, container = module.bits, 4 if module.bits <= 4 else 8
    middle, half, top = 2 ** (bits - 1), 2 ** (container - 1), np.uint8(2**bits - 1)
    scale, bias = (np.array(a.astype(mx.float32)) for a in (module.scales, module.biases))
    q = unpacked(module)
    blocks = q.reshape(*scale.shape, -1)
    low, high = blocks.min(-1), blocks.max(-1)
    constant = (low == high) | (scale == 0)
    turned = ~constant & (scale < 0)
    # A constant group is one value v, which its own scale and offset would lose: |v| * (q - z).
    value = bias + scale * low
    blocks[turned] = top - blocks[turned]
    blocks[constant] = (value > 0)[constant, None]
    low, high = np.where(turned, top - high, low), np.where(turned, top - low, high)
    low, high = np.where(constant, value > 0, low), np.where(constant, value > 0, high)
    bias, size = np.where(turned, bias + scale * top, bias), np.abs(scale)
    size = np.where(constant, np.where(value == 0, 1, np.abs(value)), size)
    offset = np.where(constant, value < 0, -bias / np.where(constant, 1, size)) - middle
    rounded = np.rint(offset)
    whole = (rounded >= -half) & (rounded < half) & (np.abs(rounded - offset) <= _WHOLE)
    with np.errstate(over="ignore", invalid="ignore"):  # which the error shows
        stored = rounded.astype(np.int8) if whole.all() else offset.astype(np.float16)
        half_size = size.astype(np.float16)
        # What the group's least and largest q become, against what they were.
        ends = np.stack([low, high]).astype(np.float64) - middle
        spanned = half_size.astype(np.float64) * (ends - stored.astype(np.float64))
        error = np.maximum(np.abs(spanned - size * (ends - offset)) - _TINY, 0) / size
    if not error.max(initial=0) <= _WORST:
        return None
    q -= np.uint8(middle)
    return Groups(q.view(np.int8), half_size, stored, container, int((~whole).sum()))


class WeightStore:
    """All constants of a program by name; functions that share a name share the weight.

    With ``release`` a layer loses its weight once it is held here, which spares memory.
    """

    def __init__(self, release: bool = False) -> None:
        self._release = release
        self._held: dict[str, Value] = {}

    def value(self, name: str, make: Callable[[], Value]) -> Value:
        if name not in self._held:
            self._held[name] = make()
        return self._held[name]

    def matrix(self, name: str, module: nn.Module) -> Value:
        """The weight of a linear layer or an embedding: its groups, or float16."""

        def encoded() -> Value:
            value = _encoded(module)
            if self._release:  # its shape stays, without memory behind it
                nothing = mx.array(0, module.weight.dtype)
                module.weight = mx.broadcast_to(nothing, module.weight.shape)
                mx.clear_cache()
            return value

        return self.value(name, encoded)

    @property
    def report(self) -> list[Encoding]:
        lines = []
        for name, value in self._held.items():
            if isinstance(value, Groups):
                whole, offsets = value.offset.dtype == np.int8, value.offset.size
                nbytes = value.q.size * value.bits // 8 + value.scale.nbytes
                nbytes += offsets * value.bits // 8 if whole else value.offset.nbytes
                form = f"int{value.bits}" if whole else f"int{value.bits}, float offsets"
                lines.append(Encoding(name, value.q.shape, form, nbytes, offsets, value.uneven))
            elif value.dtype == np.float16:
                lines.append(Encoding(name, value.shape, "fp16", value.nbytes))
        return lines


def _encoded(module: nn.Module) -> Value:
    weight = module.weight
    if "scales" in module:
        groups = encode(module)
        if groups is not None:
            return groups
        kind = {"group_size": module.group_size, "bits": module.bits}
        scales, biases = module.scales.astype(mx.float32), module.biases.astype(mx.float32)
        weight = mx.dequantize(weight, scales, biases, **kind)
    return np.array(weight.astype(mx.float32)).astype(np.float16)


def array_of(value: mx.array | np.ndarray, dtype: type) -> np.ndarray:
    """An array of any kind as numpy's."""
    if isinstance(value, mx.array):
        value = np.array(value.astype(mx.float32))
    return np.ascontiguousarray(value.astype(dtype))


def rows_of(whole: Value, ids: np.ndarray) -> Value:
    """Some rows of a matrix, as it is written."""
    if isinstance(whole, Groups):
        parts = {part: getattr(whole, part)[ids] for part in ("q", "scale", "offset")}
        return replace(whole, **parts)
    return whole[ids]


def constant(name: str, value: Value) -> Var:
    """The operation of a constant, which is written once for all functions that have it."""
    operation = operation_name(name)
    if isinstance(value, Groups):
        integers, offset = types.np_int4_dtype if value.bits == 4 else np.int8, value.offset
        arrays = {
            "data": value.q.view(integers),
            "scale": value.scale,
            "offset": offset.view(integers) if offset.dtype == np.int8 else offset,
        }
        var = mb.constexpr_blockwise_shift_scale(**arrays, name=operation)
        parts = {f"{name}.{part}": var.op.inputs[part] for part in arrays}
    else:
        var = mb.const(val=value, name=operation)
        parts = {name: var}
    for weight_id, part in parts.items():
        if part.val.size >= _IN_FILE:
            part.op.weight_id = weight_id
    return var


def operation_name(name: str) -> str:
    """Name of a weight in a program, where names have no dots."""
    return name.replace(".", "_")
