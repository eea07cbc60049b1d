"""Execution of a saved package with numpy, without Core ML: slow, and exact about indices.

``exact`` computes all floats in float32 and takes no notice of casts between them, which checks
the graph without half precision's noise. ``fp16`` rounds every result to the type that it has in
the program, as a device may; within an operation sums are float32, as hardware's are. Either way
it asserts what Core ML leaves undefined: indices of gathers and slices out of range, a state that
is read twice, indices narrower than int32.
"""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from coremltools.proto.MIL_pb2 import DataType

from specstream_mlx.errors import UserError

from .contents import model_file, read_spec

Mode = Literal["exact", "fp16"]

Kind = tuple[str, tuple[int, ...]]
"""A tensor's type: the name of its dtype, and its shape."""


class _Function(NamedTuple):
    """A function as it is run; inputs of operations are names of values, by parameter."""

    inputs: dict[str, Kind]
    constants: dict[str, Any]
    operations: list[tuple[str, dict[str, list[str]], list[tuple[str, Kind]]]]
    outputs: list[str]


class Package:
    """A saved package, ready to run; ``functions`` are their names."""

    def __init__(self, path: str | Path, mode: Mode = "exact"):
        path = Path(path)
        spec, self._mode = read_spec(path), mode
        self.title = f"numpy, {'float32' if mode == 'exact' else 'half precision'}"
        self.metadata = dict(spec.description.metadata.userDefined)
        self._program = spec.mlProgram.functions
        self.functions = list(self._program)
        states = next((f.state for f in spec.description.functions if len(f.state)), ())
        self._shapes = {s.name: tuple(s.type.stateType.arrayType.shape) for s in states}
        self._read: dict[str, _Function] = {}
        self._held: dict[int, np.ndarray] = {}  # of all functions, by place in the file
        weights = model_file(path).parent / "weights" / "weight.bin"
        if not weights.is_file() or not weights.stat().st_size:
            found = "is empty" if weights.is_file() else "is missing"
            raise UserError(f"{weights} {found}, expected the package's weights")
        self._weights = np.memmap(weights, np.uint8, "r")

    def states(self) -> dict[str, np.ndarray]:
        """Empty caches; functions that are called change them."""
        return {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}

    def weights(self, name: str) -> dict[str, np.ndarray]:
        """The constants of a function by their operations' names, quantized ones expanded."""
        return self._function(name).constants

    def call(
        self, name: str, inputs: Mapping[str, Any], states: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Run a function on inputs by name, and on states, which change; returns its outputs."""
        function, states = self._function(name), {} if states is None else states
        values = dict(function.constants)
        assert inputs.keys() == function.inputs.keys(), f"it takes {sorted(function.inputs)}"
        for key, (_, shape) in function.inputs.items():
            values[key] = np.asarray(inputs[key])
            assert values[key].shape == shape, f"{key} has the shape {values[key].shape}"
        read: set[str] = set()
        for kind, names, outputs in function.operations:
            if kind == "write_state":
                states[names["input"][0]] = values[names["data"][0]]
                continue
            if kind == "read_state":
                [state] = names["input"]
                assert state not in read, f"it reads {state} twice"
                read.add(state)
                results: Any = states[state]
            else:
                arguments: dict[str, Any] = {key: values[n] for key, [n, *_] in names.items()}
                if "values" in names:
                    arguments["values"] = [values[n] for n in names["values"]]
                results = _OPERATIONS[kind](**arguments)
            results = results if isinstance(results, tuple) else (results,)
            for (output, (dtype, shape)), value in zip(outputs, results, strict=True):
                assert value.shape == shape, f"{output} has the shape {value.shape}"
                narrow = "INT" in dtype and dtype != "INT32"
                assert not narrow, f"{output} has indices narrower than int32"
                values[output] = self._rounded(value, dtype)
        return {output: values[output] for output in function.outputs}

    def _rounded(self, value: np.ndarray, dtype: str) -> np.ndarray:
        if not dtype.startswith("FLOAT"):
            return value
        value = np.asarray(value, np.float32)
        half = self._mode == "fp16" and dtype == "FLOAT16"
        return value.astype(np.float16).astype(np.float32) if half else value

    # The program --------------------------------------------------------------------------------

    def _function(self, name: str) -> _Function:
        if name not in self._read:
            assert name in self._program, f"there is no function {name}"
            function = self._program[name]
            block, constants, operations = function.block_specializations[function.opset], {}, []
            for op in block.operations:
                outputs = [(each.name, _kind(each.type.tensorType)) for each in op.outputs]
                if op.type.startswith("const"):
                    [(output, (dtype, _))] = outputs
                    constants[output] = self._constant(op, dtype)
                else:
                    inputs_of = op.inputs.items()
                    named = {key: [b.name for b in each.arguments] for key, each in inputs_of}
                    operations.append((op.type, named, outputs))
            inputs = {
                each.name: _kind(each.type.tensorType)
                for each in function.inputs
                if each.name not in self._shapes
            }
            self._read[name] = _Function(inputs, constants, operations, list(block.outputs))
        return self._read[name]

    def _constant(self, op: Any, dtype: str) -> Any:
        """A constant: its value, or ``scale * (data - offset)``; from the file it is read once."""
        if op.type == "const":
            parts = [op.attributes["val"]]
        else:
            parts = [op.inputs[key].arguments[0].value for key in ("data", "scale", "offset")]
        place = parts[0].blobFileValue.offset
        if place in self._held:
            return self._held[place]
        value, *group = (self._value(part) for part in parts)
        if group:
            size = value.shape[1] // group[0].shape[1]
            scale, offset = (np.repeat(part.astype(np.float32), size, axis=1) for part in group)
            value = scale * (value.astype(np.float32) - offset)
        value = self._rounded(value, dtype)
        if place:
            self._held[place] = value
        return value

    def _value(self, value: Any) -> Any:
        (dtype, shape), tensor = _kind(value.type.tensorType), value.immediateValue.tensor
        if dtype == "STRING":
            return tensor.strings.values[0]
        if value.WhichOneof("value") == "blobFileValue":
            data = self._in_file(value.blobFileValue.offset)
        elif tensor.WhichOneof("value") == "bytes":
            data = np.frombuffer(tensor.bytes.values, np.uint8)
        else:
            values = getattr(tensor, tensor.WhichOneof("value")).values
            return np.array(values, dtype.lower()).reshape(shape)
        if dtype == "INT4":  # two in a byte, the first one in the lower half
            halves = np.stack([data & 15, data >> 4], -1).reshape(-1)[: prod(shape)]
            return ((halves ^ 8).view(np.int8) - 8).reshape(shape)
        return data.view(dtype.lower()).reshape(shape)

    def _in_file(self, place: int) -> np.ndarray:
        """The bytes of a constant, whose header is at ``place`` of the file of weights."""
        header = self._weights[place : place + 24]
        assert header[:4].tobytes() == b"\xef\xbe\xad\xde", f"there is no weight at byte {place}"
        size, begin = header[8:].view("<u8").tolist()
        return self._weights[begin : begin + size]


def _kind(tensor: Any) -> Kind:
    shape = tuple(dimension.constant.size for dimension in tensor.dimensions)
    return DataType.Name(tensor.dataType), shape


# Operations ---------------------------------------------------------------------------------------


def _gather(x, indices, axis, **_):
    assert ((indices >= 0) & (indices < x.shape[axis])).all(), "a gather out of range"
    return np.take(x, indices, axis=axis)


def _cast(x, dtype):
    return x.astype({"fp16": np.float32, "fp32": np.float32, "int32": np.int32}[dtype])


def _layer_norm(x, axes, epsilon, gamma=None, **_):
    mean, spread = x.mean(tuple(axes), keepdims=True), x.var(tuple(axes), keepdims=True)
    normal = (x - mean) / np.sqrt(spread + np.float32(epsilon))
    return normal if gamma is None else normal * gamma


def _matmul(x, y, transpose_x, transpose_y):
    assert not transpose_x
    return x @ (y.swapaxes(-1, -2) if transpose_y else y)


def _softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _log_sum_exp(x, axes, keep_dims):
    assert keep_dims
    most = x.max(tuple(axes), keepdims=True)
    return np.log(np.exp(x - most).sum(tuple(axes), keepdims=True)) + most


def _slices(x, begin, end):
    for first, last, size in zip(begin, end, x.shape, strict=True):
        assert 0 <= first < last <= size, f"a slice {first} to {last} of {size}"
    return tuple(map(slice, begin, end))


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
    "concat": lambda values, axis, **_: np.concatenate(values, axis=axis),
    "equal": lambda x, y: x == y,
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "gather": _gather,
    "greater_equal": lambda x, y: x >= y,
    "identity": lambda x: x,
    "layer_norm": _layer_norm,
    "less": lambda x, y: x < y,
    "linear": lambda x, weight, bias: x @ weight.T + bias,
    "logical_and": lambda x, y: x & y,
    "logical_not": lambda x: ~x,
    "logical_or": lambda x, y: x | y,
    "matmul": _matmul,
    "maximum": lambda x, y: np.maximum(x, y),
    "mul": lambda x, y: x * y,
    "reduce_argmax": lambda x, axis, **_: x.argmax(axis).astype(np.int32),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": lambda x, axes, keep_dims: x.max(tuple(axes), keepdims=bool(keep_dims)),
    "reshape": lambda x, shape, **_: x.reshape(shape),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "slice_by_index": _slice_by_index,
    "slice_update": _slice_update,
    "softmax": _softmax,
    "split": _split,
    "squeeze": lambda x, axes: x.squeeze(tuple(axes)),
    "stack": lambda values, axis: np.stack(values, axis),
    "sub": lambda x, y: x - y,
    "tile": lambda x, reps: np.tile(x, reps),
    "topk": _topk,
    "transpose": lambda x, perm: x.transpose(perm),
}
