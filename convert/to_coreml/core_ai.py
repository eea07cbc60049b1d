"""A saved package in Core AI's terms: its MIL program, translated operation by operation.

Weights stay packed and the caches stay states. Of what a translation needs, ``coreai.authoring``
has all but packed 4-bit constants and mutable arguments; these come from its internal modules, so
coreai-core is pinned to a version.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import coreai.authoring as ca
import numpy as np
from coreai._compiler.dialects.coreai import ConstantOp
from coreai._compiler.ir import (
    ArrayAttr,
    Attribute,
    DenseResourceElementsAttr,
    DictAttr,
    StringAttr,
)
from coreai.authoring.constant import constant
from coreai.authoring.graph_builder import GraphOp
from coremltools.converters.mil.mil import Function, Operation, Var, types

from .evaluate import Mode, Package

Given = Mapping[str, Any]
"""Inputs of an operation by name: values, and arrays where they are constants."""


def translated(package: Package, mode: Mode = "fp16") -> ca.AIProgram:
    """A package's program for Core AI.

    Args:
        package: a saved one.
        mode: ``fp16``: types as in the package. ``exact``: float32 wherever it has float16, which
            tells a wrong translation from half precision's noise.
    """
    module = ca.Module.create()
    with module:
        shared: dict[Any, Attribute] = {}
        for name, function in package.functions.items():
            _Translation(name, function, mode, shared).write()
    return ca.AIProgram(module)


class _Translation:
    """One function's.

    Args:
        name: of the function.
        function: in MIL.
        mode: as in ``translated``.
        shared: weights of the functions before, so that they are in the asset once.
    """

    def __init__(self, name: str, function: Function, mode: Mode, shared: dict[Any, Attribute]):
        self._name, self._function, self._shared = name, function, shared
        self._half = mode == "fp16"
        self._values: dict[Var, Any] = {}

    def write(self) -> None:
        """Write the function into the module that is being written."""
        inputs = self._function.inputs
        kinds = [ca.TensorType(v.shape, self._dtype(_element(v))) for v in inputs.values()]
        graph = GraphOp(self._name, [k._to_mlir() for k in kinds], [], list(inputs))
        written: dict[str, ca.Value] = {}
        with graph.block:
            for var, argument in zip(inputs.values(), graph.arguments, strict=True):
                self._values[var] = ca.Value._from_mlir(argument)
            for op in self._function.operations:
                if op.op_type == "read_state":
                    self._values[op.outputs[0]] = self._values[op.inputs["input"]]
                elif op.op_type == "coreml_update_state":
                    value = self._values[op.inputs["value"]]
                    written[op.inputs["state"].name] = self._values[op.outputs[0]] = value
                elif op.op_type == "const":
                    self._values[op.outputs[0]] = op.outputs[0].val
                elif op.op_type == "constexpr_blockwise_shift_scale":
                    self._values[op.outputs[0]] = self._packed(op)
                else:
                    self._translate(op)
            outputs = {v.name: self._values[v] for v in self._function.outputs}
            outputs |= {_updated(name): value for name, value in written.items()}
            graph.set_outputs_spec_from_dict({n: v._to_mlir() for n, v in outputs.items()})
        graph.arg_attrs = ArrayAttr.get(
            [
                DictAttr.get({"coreai.name": StringAttr.get(name)} | _mutation(name, written))
                for name in inputs
            ]
        )

    def _dtype(self, kind: type) -> Any:
        """numpy's dtype for a MIL type, as it is computed here."""
        if types.is_float(kind):
            return np.float16 if self._half and kind == types.fp16 else np.float32
        return types.nptype_from_builtin(kind)

    def _packed(self, op: Operation) -> ca.Value:
        data, scale, offset = (op.inputs[name].val for name in ("data", "scale", "offset"))
        dtype = self._dtype(op.outputs[0].dtype)
        before, behind = offset, np.zeros(scale.shape, dtype)
        if offset.dtype == np.float16:  # which Core AI takes behind the scale only
            before = np.zeros_like(data[:, : scale.shape[1]])
            behind = -(scale.astype(np.float32) * offset).astype(dtype)
        scale, behind = self._constant(scale.astype(dtype)), self._constant(behind)
        return ca.blockwise_shift_scale(self._integers(data), scale, self._integers(before), behind)

    def _integers(self, array: np.ndarray) -> ca.Value:
        """A constant of 4 or 8 bits; two of 4 bits share a byte, the first one its lower half."""
        if types.numpy_type_to_builtin_type(array.dtype) != types.uint4:
            return self._constant(array)
        flat = array.astype(np.uint8).reshape(-1)
        flat = np.pad(flat, (0, flat.size % 2))
        kind = ca.TensorType(array.shape, ca.uint4)._to_mlir()

        def make() -> Attribute:
            packed = np.ascontiguousarray(flat[::2] | flat[1::2] << 4)
            return DenseResourceElementsAttr.get_from_buffer(packed, "packed", kind)

        return self._kept((array.shape, "uint4", _digest(flat)), make)

    def _constant(self, array: np.ndarray) -> ca.Value:
        key = array.shape, array.dtype.str, _digest(array)
        return self._kept(key, lambda: constant(array).defining_op._attr_dict()["value"])

    def _kept(self, key: Any, make: Callable[[], Attribute]) -> ca.Value:
        """A constant whose content is in the asset once."""
        if key not in self._shared:
            self._shared[key] = make()
        return ca.Value._from_mlir(ConstantOp(value=self._shared[key]).result)

    def _translate(self, op: Operation) -> None:
        given = {}
        for name, var in op.inputs.items():
            if isinstance(var, list | tuple):
                given[name] = [self._operand(one) for one in var]
            elif var is not None:
                given[name] = self._operand(var) if name in _OPERANDS else self._values[var]
        found = _OPERATIONS[op.op_type](**given)
        found = found if isinstance(found, tuple) else (found,)
        for var, value in zip(op.outputs, found, strict=True):
            self._values[var] = self._fitted(value, var)

    def _operand(self, var: Var) -> ca.Value:
        value = self._values[var]
        if isinstance(value, ca.Value):
            return value
        return self._constant(np.asarray(value, self._dtype(var.dtype)))

    def _fitted(self, value: ca.Value, var: Var) -> ca.Value:
        """A result in the shape and of the type that it has in the package."""
        if value.type.shape != tuple(var.shape):
            value = ca.reshape(value, np.array(var.shape, np.int32))
        wanted = ca.TensorType(var.shape, self._dtype(var.dtype))
        return value if value.type.dtype == wanted.dtype else ca.cast(value, wanted.dtype)


def _element(var: Var) -> type:
    """Element type of an input, or of a state."""
    wrapped = var.sym_type.wrapped_type() if types.is_state(var.sym_type) else var.sym_type
    return wrapped.get_primitive()


def _updated(state: str) -> str:
    """The output that takes a state's place."""
    return f"{state}Updated"


def _mutation(name: str, written: Mapping[str, ca.Value]) -> dict[str, Attribute]:
    if name not in written:
        return {}
    return {"MutableBuffers.buffer_mutation": StringAttr.get(_updated(name))}


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array)).digest()


# Operations ---------------------------------------------------------------------------------------
#
# Shapes and types of results are mended by ``_fitted``, so what only changes these does nothing.

_OPERANDS = {"x", "y", "weight", "bias", "gamma", "indices", "update"}
"""Inputs that are tensors even where they are constant; other constants stay arrays."""


def _axes(axes: Any) -> np.ndarray:
    return np.asarray(axes, np.int32).reshape(-1)


def _axis(axis: Any) -> np.ndarray:
    return np.asarray(axis, np.int32)


def _turned(x: ca.Value, perm: Any) -> ca.Value:
    """``x`` with its axes in another order."""
    rank = len(x.type.shape)
    return ca.transpose(x, np.array([axis % rank for axis in perm], np.uint32))


def _flipped(x: ca.Value) -> ca.Value:
    """``x`` with its last two axes exchanged."""
    rank = len(x.type.shape)
    return _turned(x, [*range(rank - 2), rank - 1, rank - 2])


def _gather(x: ca.Value, indices: ca.Value, axis: Any, **_: Any) -> ca.Value:
    shape, count = list(x.type.shape), int(np.prod(indices.type.shape))
    axis = int(axis) % len(shape)
    if axis == 0:
        return ca.gather_nd(x, ca.reshape(indices, np.array([count, 1], np.int32)))
    beside = [1] * len(shape)
    shape[axis] = beside[axis] = count
    indices = ca.reshape(indices, np.array(beside, np.int32))
    indices = ca.broadcast_to(indices, np.array(shape, np.uint32))
    return ca.gather_along_axis(x, indices, _axis(axis))


def _kept(x: ca.Value, like: ca.Value, axes: np.ndarray) -> ca.Value:
    """A reduced ``like`` with its axes of size 1."""
    shape = np.array(like.type.shape, np.int32)
    shape[axes] = 1
    return ca.reshape(x, shape)


def _layer_norm(
    x: ca.Value, axes: Any, epsilon: Any, gamma: ca.Value | None = None, **_: Any
) -> ca.Value:
    x, axes = ca.cast(x, np.float32), _axes(axes)
    x = ca.broadcasting_sub(x, _kept(ca.reduce_mean(x, axes), x, axes))
    spread = _kept(ca.reduce_mean(ca.broadcasting_mul(x, x), axes), x, axes)
    found = ca.broadcasting_mul(x, ca.rsqrt(ca.broadcasting_add(spread, np.float32(epsilon))))
    return found if gamma is None else ca.broadcasting_mul(found, ca.cast(gamma, np.float32))


def _linear(x: ca.Value, weight: ca.Value, bias: ca.Value | None = None) -> ca.Value:
    y = ca.broadcasting_batch_matmul(x, _flipped(weight))
    return y if bias is None else ca.broadcasting_add(y, bias)


def _matmul(
    x: ca.Value, y: ca.Value, transpose_x: Any = False, transpose_y: Any = False
) -> ca.Value:
    x, y = _flipped(x) if transpose_x else x, _flipped(y) if transpose_y else y
    return ca.broadcasting_batch_matmul(x, y)


def _log_sum_exp(x: ca.Value, axes: Any, **_: Any) -> ca.Value:
    axes = _axes(axes)
    most = _kept(ca.reduce_max(x, axes), x, axes)
    total = ca.reduce_sum(ca.exp(ca.broadcasting_sub(x, most)), axes)
    return ca.broadcasting_add(_kept(ca.log(total), x, axes), most)


def _slice_by_index(x: ca.Value, begin: Any, end: Any, **_: Any) -> ca.Value:
    return ca.slice_(x, begin, end, np.ones(len(x.type.shape), np.int32))


def _slice_update(x: ca.Value, update: ca.Value, begin: Any, end: Any, **_: Any) -> ca.Value:
    return ca.slice_update(x, begin, end, np.ones(len(x.type.shape), np.int32), update)


def _split(
    x: ca.Value, axis: Any, split_sizes: Any = None, num_splits: Any = None
) -> tuple[ca.Value, ...]:
    if split_sizes is None:
        split_sizes = [x.type.shape[int(axis)] // int(num_splits)] * int(num_splits)
    return tuple(ca.split(x, np.asarray(split_sizes, np.uint32), _axis(axis)))


def _stack(values: list[ca.Value], axis: Any) -> ca.Value:
    shape = list(values[0].type.shape)
    shape.insert(int(axis), 1)
    rows = [ca.reshape(value, np.array(shape, np.int32)) for value in values]
    return ca.concat(_axis(axis), rows)


def _topk(x: ca.Value, k: Any, axis: Any, **_: Any) -> tuple[ca.Value, ca.Value]:
    shape = list(x.type.shape)
    axis = int(axis) % len(shape)
    shape[axis] = int(k)
    places = ca.argsort(x, _axis(axis), np.bool_(True), np.bool_(True))
    places = _slice_by_index(places, np.zeros(len(shape), np.int32), np.array(shape, np.int32))
    return ca.gather_along_axis(x, places, _axis(axis)), places


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": ca.broadcasting_add,
    "cast": lambda x, dtype: x,
    "concat": lambda values, axis, **_: ca.concat(_axis(axis), values),
    "equal": lambda x, y: ca.broadcasting_equal(x, y),
    "expand_dims": lambda x, axes: x,
    "gather": _gather,
    "greater_equal": lambda x, y: ca.not_(ca.broadcasting_greater(y, x)),
    "identity": lambda x: x,
    "layer_norm": _layer_norm,
    "less": lambda x, y: ca.broadcasting_greater(y, x),
    "linear": _linear,
    "logical_and": ca.broadcasting_and,
    "logical_not": ca.not_,
    "logical_or": ca.broadcasting_or,
    "matmul": _matmul,
    "maximum": ca.broadcasting_maximum,
    "mul": ca.broadcasting_mul,
    "reduce_argmax": lambda x, axis, **_: ca.argmax(x, _axis(axis)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": lambda x, axes, **_: ca.reduce_max(x, _axes(axes)),
    "reshape": lambda x, shape, **_: x,
    "silu": ca.silu,
    "slice_by_index": _slice_by_index,
    "slice_update": _slice_update,
    "softmax": lambda x, axis: ca.softmax(x, _axis(axis)),
    "split": _split,
    "squeeze": lambda x, axes: x,
    "stack": _stack,
    "sub": ca.broadcasting_sub,
    "tile": lambda x, reps: ca.tile(x, np.asarray(reps, np.uint32)),
    "topk": _topk,
    "transpose": _turned,
}
