"""Execution of a saved package with numpy, without Core ML: slow, and exact about indices.

``exact`` computes all floats in float32 and takes no notice of casts between them, which checks
the graph without half precision's noise. ``fp16`` rounds every result to the type that it has in
the program, as a device may; within an operation sums are float32, as hardware's are. Either way
it asserts what Core ML leaves undefined: indices of gathers and slices out of range, a state that
is read twice, indices narrower than int32.
"""

from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Literal

import numpy as np
from coremltools import proto
from coremltools.converters.mil.frontend.milproto.load import load_mil_proto
from coremltools.converters.mil.mil import Function, Operation, types

from specstream_mlx.errors import UserError
from specstream_mlx.files import reason

from .saved import model_file, read_spec

Mode = Literal["exact", "fp16"]
Values = Mapping[str, Any]


class Package:
    """A saved package, ready to run.

    Args:
        path: an ``.mlpackage``.
        mode: see above.

    Attributes:
        title: name of the executor and its mode.
        metadata: the package's metadata.
        functions: MIL functions by name, each read when it is first asked for.
    """

    def __init__(self, path: str | Path, mode: Mode = "exact"):
        path = Path(path)
        spec, self._mode = read_spec(path), mode
        self.title = f"numpy, {'float32' if mode == 'exact' else 'half precision'}"
        self.metadata = dict(spec.description.metadata.userDefined)
        self.functions: Mapping[str, Function] = _Functions(path, spec)
        states = next((f.state for f in spec.description.functions if len(f.state)), ())
        self._shapes = {s.name: tuple(s.type.stateType.arrayType.shape) for s in states}
        self._constants: dict[Operation | str, Any] = {}  # matrices by name, for all functions

    def states(self) -> dict[str, np.ndarray]:
        """Empty caches; functions that are called change them."""
        return {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}

    def call(
        self, name: str, inputs: Mapping[str, Any], states: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Run a function.

        Args:
            name: of the function.
            inputs: arrays by name, in the shapes that it declares.
            states: from ``states``; changed in place.

        Returns:
            Its outputs by name.
        """
        function, states = self.functions[name], {} if states is None else states
        values: dict[Any, Any] = {}
        found: Sequence[Any]
        expected = {n: v for n, v in function.inputs.items() if n not in _states_of(function)}
        assert inputs.keys() == expected.keys(), f"{name} takes {sorted(expected)}"
        for key, var in expected.items():
            values[var] = np.asarray(inputs[key])
            assert values[var].shape == tuple(var.shape), f"{key} has shape {values[var].shape}"
        read: set[str] = set()
        for op in function.operations:
            if op.op_type == "read_state":
                state = op.inputs["input"].name
                assert state not in read, f"{name} reads {state} twice"
                read.add(state)
                found = (states[state],)
            elif op.op_type == "coreml_update_state":
                state = op.inputs["state"].name
                states[state] = values[op.inputs["value"]]
                found = (states[state],)
            elif op.op_type.startswith("const"):
                found = (self._constant(op),)
            else:
                found = self._run(op, values)
            values.update(zip(op.outputs, found, strict=True))
        return {var.name: values[var] for var in function.outputs}

    def weights(self, name: str) -> dict[str, np.ndarray]:
        """The constants of a function by their operations' names, quantized ones expanded."""
        operations = self.functions[name].operations
        return {op.name: self._constant(op) for op in operations if op.op_type.startswith("const")}

    def _constant(self, op: Operation) -> Any:
        key = op if op.op_type == "const" else op.name
        if key not in self._constants:
            value = op.outputs[0].val
            if op.op_type != "const":
                value = _expanded(*(op.inputs[name].val for name in ("data", "scale", "offset")))
            self._constants[key] = self._rounded(value, op.outputs[0].dtype)
        return self._constants[key]

    def _run(self, op: Operation, values: Values) -> tuple[np.ndarray, ...]:
        given = {}
        for name, var in op.inputs.items():
            if isinstance(var, list | tuple):
                given[name] = [values[one] for one in var]
            elif var is not None:
                given[name] = values[var]
        found = _OPERATIONS[op.op_type](**given)
        found = found if isinstance(found, tuple) else (found,)
        for var, value in zip(op.outputs, found, strict=True):
            assert tuple(var.shape) == value.shape, f"{op.name}: {value.shape}"
            narrow = types.is_int(var.dtype) and var.dtype != types.int32
            assert not narrow, f"{op.name} has indices narrower than int32"
        return tuple(self._rounded(v, var.dtype) for var, v in zip(op.outputs, found, strict=True))

    def _rounded(self, value: Any, dtype: type) -> Any:
        """A result in the type that this mode gives it."""
        if not types.is_float(dtype) or isinstance(value, str):
            return value
        value = np.asarray(value, np.float32)
        half = self._mode == "fp16" and dtype == types.fp16
        return value.astype(np.float16).astype(np.float32) if half else value


class _Functions(Mapping[str, Function]):
    """The functions of a model's program; reading one takes a second where a model is large."""

    def __init__(self, path: Path, spec: Any):
        self._path, self._spec = path, spec
        self._weights = str(model_file(path).parent / "weights")
        self._read: dict[str, Function] = {}

    def __getitem__(self, name: str) -> Function:
        if name not in self._read:
            program, alone = self._spec.mlProgram, proto.MIL_pb2.Program()
            if name not in program.functions:
                raise KeyError(name)
            alone.version = program.version
            alone.functions[name].CopyFrom(program.functions[name])
            try:
                found = load_mil_proto(alone, self._spec.specificationVersion, self._weights)
            except Exception as error:  # coremltools and its C++ raise many types
                raise UserError(f"{self._path}: {name} cannot be read: {reason(error)}") from None
            self._read[name] = found.functions[name]
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spec.mlProgram.functions)

    def __len__(self) -> int:
        return len(self._spec.mlProgram.functions)


def _states_of(function: Any) -> dict[str, Any]:
    return {n: v for n, v in function.inputs.items() if types.is_state(v.sym_type)}


def _expanded(data: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """(out, in) float32: ``scale * (data - offset)``."""
    size = data.shape[1] // scale.shape[1]
    scale, offset = (np.repeat(a.astype(np.float32), size, axis=1) for a in (scale, offset))
    return scale * (data.astype(np.float32) - offset)


# Operations ---------------------------------------------------------------------------------------


def _gather(x, indices, axis, **_):
    assert ((indices >= 0) & (indices < x.shape[axis])).all(), "a gather out of range"
    return np.take(x, indices, axis=axis)


def _cast(x, dtype):
    return x.astype({"fp16": np.float32, "fp32": np.float32, "int32": np.int32}[dtype])


def _concat(values, axis, **_):
    return np.concatenate(values, axis=axis)


def _layer_norm(x, axes, epsilon, gamma=None, **_):
    axes = tuple(np.asarray(axes).tolist())
    mean, spread = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    normal = (x - mean) / np.sqrt(spread + np.float32(epsilon))
    return normal if gamma is None else normal * gamma


def _linear(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias


def _matmul(x, y, transpose_x=False, transpose_y=False):
    x, y = x.swapaxes(-1, -2) if transpose_x else x, y.swapaxes(-1, -2) if transpose_y else y
    return x @ y


def _softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _log_sum_exp(x, axes, keep_dims):
    axes = tuple(np.asarray(axes).tolist())
    most = x.max(axes, keepdims=True)
    found = np.log(np.exp(x - most).sum(axes, keepdims=True)) + most
    return found if keep_dims else found.squeeze(axes)


def _slices(x, begin, end):
    pairs = list(zip(np.asarray(begin).tolist(), np.asarray(end).tolist(), strict=True))
    for (first, last), size in zip(pairs, x.shape, strict=True):
        assert 0 <= first < last <= size, f"a slice {first} to {last} of {size}"
    return tuple(slice(*pair) for pair in pairs)


def _slice_by_index(x, begin, end, **masks):
    assert not any(np.any(masks[name]) for name in masks if name.endswith("mask"))
    return x[_slices(x, begin, end)]


def _slice_update(x, update, begin, end, **_):
    place, x = _slices(x, begin, end), x.copy()
    assert x[place].shape == update.shape, "a slice of another size"
    x[place] = update
    return x


def _split(x, axis, split_sizes=None, num_splits=None):
    places = num_splits if split_sizes is None else np.cumsum(split_sizes)[:-1]
    return tuple(np.split(x, places, axis=axis))


def _topk(x, k, axis, ascending=False, **_):
    assert not ascending
    places = np.argsort(-x, axis=axis, kind="stable").take(np.arange(k), axis=axis)
    return np.take_along_axis(x, places, axis=axis), places.astype(np.int32)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "cast": _cast,
    "concat": _concat,
    "equal": lambda x, y: x == y,
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(np.asarray(axes).tolist())),
    "gather": _gather,
    "greater_equal": lambda x, y: x >= y,
    "identity": lambda x: x,
    "layer_norm": _layer_norm,
    "less": lambda x, y: x < y,
    "linear": _linear,
    "logical_and": lambda x, y: x & y,
    "logical_not": lambda x: ~x,
    "logical_or": lambda x, y: x | y,
    "matmul": _matmul,
    "maximum": lambda x, y: np.maximum(x, y),
    "mul": lambda x, y: x * y,
    "reduce_argmax": lambda x, axis, **_: x.argmax(axis).astype(np.int32),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": lambda x, axes, keep_dims: x.max(tuple(axes), keepdims=bool(keep_dims)),
    "reshape": lambda x, shape, **_: x.reshape(np.asarray(shape).tolist()),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "slice_by_index": _slice_by_index,
    "slice_update": _slice_update,
    "softmax": _softmax,
    "split": _split,
    "squeeze": lambda x, axes: x.squeeze(tuple(np.asarray(axes).tolist())),
    "stack": lambda values, axis: np.stack(values, axis),
    "sub": lambda x, y: x - y,
    "tile": lambda x, reps: np.tile(x, np.asarray(reps).tolist()),
    "topk": _topk,
    "transpose": lambda x, perm: x.transpose(np.asarray(perm).tolist()),
}
