"""Weights as Core ML's constants: MLX's quantized groups stay what they are, all else is fp16.

MLX holds a group as ``scale * q + bias``, Core ML as ``scale * (q - offset)``. In MLX's own way of
quantizing ``bias / scale`` is an integer up to rounding, and so can the offset be, of the data's
type. In others it is any number: groups of GGUF or of a converted model begin at their least
weight. An integer would then shift all weights of a group the same way, which sums up, so the
offset is float16. Where scale is negative, q counts from the other end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

_IN_FILE = 10
"""Elements from which on coremltools writes a constant into the file of weights."""

_ROWS = 1024
"""Rows that are encoded at a time, since MLX unpacks into floats."""

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

    Attributes:
        held: q, whose middle is 0 so that offsets are small and float16 is fine there, with half
            its type's range added: (out, in) uint8; where ``bits`` is 4, (out, in / 2), two of q
            in a byte, the first one in the lower half.
        scale: (out, groups) float16.
        offset: (out, groups), of q's signed type or float16.
        bits: 4 or 8, of the type that holds q.
        uneven: groups whose offset is no number of q's type.
        error: the most by which a weight is off, in steps of its group.
    """

    held: np.ndarray
    scale: np.ndarray
    offset: np.ndarray
    bits: int
    uneven: int
    error: float

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        rows, width = self.held.shape
        return rows, width * 8 // self.bits

    def constant(self) -> np.ndarray:
        """The integers (out, in) for coremltools, which flattens them."""
        if self.bits == 8:
            return (self.held ^ 128).view(np.int8)
        array = np.broadcast_to(np.zeros((), types.np_int4_dtype), self.shape).view(_Paired)
        array.pairs = self.held
        return array


class _Paired(np.ndarray):
    """Integers of 4 bits that take half a byte each until coremltools writes them.

    It asks for a byte each, and reads them in one place alone: when it writes an array into the
    file of weights it flattens it.
    """

    pairs: np.ndarray

    def flatten(self, order: Any = "C") -> np.ndarray:
        return (_apart(self.pairs).view(np.int8) - 8).reshape(-1)


def _paired(q: np.ndarray) -> np.ndarray:
    """(out, in / 2) uint8 of integers (out, in) below 16."""
    q = q.astype(np.uint8)
    return q[:, ::2] | q[:, 1::2] << 4


def _apart(pairs: np.ndarray) -> np.ndarray:
    """(out, in) uint8: the inverse of ``_paired``."""
    q = np.empty((len(pairs), 2 * pairs.shape[1]), np.uint8)
    q[:, ::2], q[:, 1::2] = pairs & 15, pairs >> 4
    return q


@dataclass(frozen=True)
class Encoding:
    """One line of the report: how a tensor was written.

    Attributes:
        name: of the tensor.
        shape: as a dense one.
        form: ``int4``, ``int8``, either with ``float offsets``, or ``fp16``.
        nbytes: in the file of weights.
        groups: that share a scale; 0 with ``fp16``.
        uneven: groups whose offset is no integer of the type.
        error: the most by which a weight of ``int4`` and ``int8`` is off, in steps of its group.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    nbytes: int
    groups: int = 0
    uneven: int = 0
    error: float = 0.0


def encode(
    q: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    bits: int,
    container: int,
    floats: bool = False,
) -> Groups:
    """Bring MLX's affine groups into Core ML's form.

    Offsets are integers of q's type if all groups have one there, else float16.

    Args:
        q: (out, in) uint8.
        scale: (out, groups) float32, of any sign.
        bias: (out, groups) float32.
        bits: of q.
        container: 4 or 8, of the type that will hold q.
        floats: float16 offsets in any case, since other rows of the matrix need them.
    """
    integers = types.np_int4_dtype if container == 4 else np.int8
    middle, half = 2 ** (bits - 1), 2 ** (container - 1)
    groups = scale.shape[1]
    blocks = q.reshape(len(q), groups, -1)
    low, high = blocks.min(-1), blocks.max(-1)
    constant = (low == high) | (scale == 0)
    turned = ~constant & (scale < 0)
    top = np.uint8(2**bits - 1)
    blocks = np.where(turned[..., None], top - blocks, blocks)
    bias = np.where(turned, bias + scale * top, bias)
    size = np.abs(scale)
    # A constant group is one value v, which its own scale and offset would lose: |v| * (q - z).
    value = bias + scale * low
    size = np.where(constant, np.where(value == 0, 1, np.abs(value)), size)
    blocks = np.where(constant[..., None], (value > 0)[..., None], blocks).astype(np.uint8)
    offset = np.where(constant, value < 0, -bias / np.where(constant, 1, size)) - middle
    rounded = np.rint(offset)
    within = (rounded >= -half) & (rounded < half)
    whole = within & (np.abs(rounded - offset) <= _WHOLE)
    with np.errstate(over="ignore"):  # which the error below shows
        kept = size.astype(np.float16)
        floats = floats or not whole.all()
        stored = offset.astype(np.float16) if floats else rounded.astype(integers)
    # What the group's least and largest q become, against what they were.
    ends = np.stack([blocks.min(-1), blocks.max(-1)]).astype(np.float64) - middle
    with np.errstate(over="ignore", invalid="ignore"):
        found = kept.astype(np.float64) * (ends - stored.astype(np.float64))
        error = np.abs(found - size * (ends - offset)) - _TINY
    error = np.maximum(error, 0) / size
    worst = np.nan_to_num(error, nan=np.inf).max(initial=0)
    held = blocks.reshape(q.shape) + np.uint8(half - middle)
    held = _paired(held) if container == 4 else held
    return Groups(held, kept, stored, container, int((~whole).sum()), worst)


def unpacked(module: nn.Module, rows: slice = slice(None)) -> np.ndarray:
    """(out, in) uint8: the integers of some rows of an affinely quantized layer or embedding."""
    scales, biases = module.scales[rows], module.biases[rows]
    kind = {"group_size": module.group_size, "bits": module.bits}
    found = mx.dequantize(module.weight[rows], mx.ones_like(scales), mx.zeros_like(biases), **kind)
    return np.array(found.astype(mx.uint8))


class Store:
    """All constants of a program by name; functions that share a name share the weight.

    Args:
        release: takes the weight out of a layer once it is held here, which spares memory.

    Attributes:
        report: how each weight was written.
    """

    def __init__(self, release: bool = False) -> None:
        self._release = release
        self._held: dict[str, np.ndarray | Groups] = {}
        self.report: list[Encoding] = []

    def dense(
        self, name: str, make: Callable[[], mx.array | np.ndarray], dtype: type
    ) -> np.ndarray:
        """A constant of this name, made when it is first asked for."""
        if name not in self._held:
            value = make()
            if isinstance(value, mx.array):
                value = np.array(value.astype(mx.float32))
            self._keep(name, np.ascontiguousarray(value.astype(dtype)))
        held = self._held[name]
        assert isinstance(held, np.ndarray)
        return held

    def matrix(self, name: str, module: nn.Module) -> np.ndarray | Groups:
        """The weight of a linear layer or an embedding, as it is held: in groups or float16."""
        if name not in self._held:
            self._keep(name, _encoded(module))
            if self._release:  # its shape stays, without memory behind it
                nothing = mx.array(0, module.weight.dtype)
                module.weight = mx.broadcast_to(nothing, module.weight.shape)
                mx.clear_cache()
        return self._held[name]

    def rows(self, name: str, of: str, module: nn.Module, ids: np.ndarray) -> np.ndarray | Groups:
        """Some rows of a matrix, as it is written, under a name of their own."""
        if name not in self._held:
            whole = self.matrix(of, module)
            if isinstance(whole, Groups):
                parts = {p: getattr(whole, p)[ids] for p in ("held", "scale", "offset")}
                self._keep(name, replace(whole, **parts))
            else:
                self._keep(name, whole[ids])
        return self._held[name]

    def taken(self, before: str) -> dict[str, np.ndarray | Groups]:
        """The constants whose names begin so, by the rest of these; they are held no more."""
        names = [name for name in self._held if name.startswith(before)]
        self.report = [line for line in self.report if not line.name.startswith(before)]
        return {name.removeprefix(before): self._held.pop(name) for name in names}

    def _keep(self, name: str, value: np.ndarray | Groups) -> None:
        self._held[name] = value
        if isinstance(value, Groups):
            whole = value.offset.dtype == np.int8
            nbytes = value.held.nbytes + value.scale.nbytes
            nbytes += value.offset.size * value.bits // 8 if whole else value.offset.nbytes
            form = f"int{value.bits}" if whole else f"int{value.bits}, float offsets"
            facts = value.scale.size, value.uneven, float(value.error)
            self.report.append(Encoding(name, value.shape, form, nbytes, *facts))
        elif value.dtype == np.float16:
            self.report.append(Encoding(name, value.shape, "fp16", value.nbytes))


def _encoded(module: nn.Module) -> np.ndarray | Groups:
    if "scales" not in module:
        return np.array(module.weight.astype(mx.float32)).astype(np.float16)
    groups = _grouped(module)
    if groups.error > _WORST:
        kind = {"group_size": module.group_size, "bits": module.bits}
        scales, biases = module.scales.astype(mx.float32), module.biases.astype(mx.float32)
        dense = mx.dequantize(module.weight, scales, biases, **kind)
        return np.array(dense).astype(np.float16)
    return groups


def _grouped(module: nn.Module, floats: bool = False) -> Groups:
    """A quantized layer's groups, encoded a few rows at a time."""
    container = 4 if module.bits <= 4 else 8
    scale, bias = (np.array(a.astype(mx.float32)) for a in (module.scales, module.biases))
    width = scale.shape[1] * module.group_size
    held = np.empty((len(scale), width * container // 8), np.uint8)
    parts = []
    for row in range(0, len(held), _ROWS):
        rows = slice(row, row + _ROWS)
        integers = unpacked(module, rows)
        part = encode(integers, scale[rows], bias[rows], module.bits, container, floats)
        held[rows] = part.held
        parts.append(replace(part, held=held[rows]))
    if len({part.offset.dtype for part in parts}) > 1:
        return _grouped(module, floats=True)
    offset = np.concatenate([part.offset for part in parts])
    return Groups(
        held,
        np.concatenate([part.scale for part in parts]),
        offset.astype(parts[0].offset.dtype),  # which may be 4 bits wide for coremltools alone
        container,
        sum(part.uneven for part in parts),
        max(part.error for part in parts),
    )


class Constants:
    """The constants of one function, each of which is one operation there.

    Args:
        store: of the program.
    """

    def __init__(self, store: Store):
        self._store = store
        self._vars: dict[str, Var] = {}

    def dense(self, name: str, make: Callable[[], mx.array | np.ndarray]) -> Var:
        """A float16 constant."""
        return self._once(name, lambda: self._const(name, make, np.float16))

    def table(self, name: str, make: Callable[[], np.ndarray]) -> Var:
        """A float32 constant."""
        return self._once(name, lambda: self._const(name, make, np.float32))

    def integers(self, name: str, make: Callable[[], np.ndarray]) -> Var:
        """An int32 constant."""
        return self._once(name, lambda: self._const(name, make, np.int32))

    def matrix(self, name: str, module: nn.Module) -> Var:
        """(out, in) weight of a linear layer or an embedding."""
        return self._once(name, lambda: self._matrix(name, self._store.matrix(name, module)))

    def rows(self, name: str, of: str, module: nn.Module, ids: np.ndarray) -> Var:
        """(rows, in) some rows of such a weight."""
        return self._once(name, lambda: self._matrix(name, self._store.rows(name, of, module, ids)))

    def _const(self, name: str, make: Callable[[], mx.array | np.ndarray], dtype: type) -> Var:
        return mb.const(val=self._store.dense(name, make, dtype), name=operation_name(name))

    def _once(self, name: str, make: Callable[[], Var]) -> Var:
        if name not in self._vars:
            var = make()
            if var.op.op_type == "const":
                _share(var, name)
            self._vars[name] = var
        return self._vars[name]

    def _matrix(self, name: str, value: np.ndarray | Groups) -> Var:
        if isinstance(value, np.ndarray):
            return mb.const(val=value, name=operation_name(name))
        parts = {"data": value.constant(), "scale": value.scale, "offset": value.offset}
        var = mb.constexpr_blockwise_shift_scale(**parts, name=operation_name(name))
        for part in parts:
            _share(var.op.inputs[part], f"{name}.{part}")
        return var


def operation_name(name: str) -> str:
    """Name of a weight in a program, where names have no dots."""
    return name.replace(".", "_")


def _share(var: Var, name: str) -> None:
    """Let a constant be written once for all functions that have it under this name."""
    if var.val.size >= _IN_FILE:
        var.op.weight_id = name
