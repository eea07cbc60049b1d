"""A model's weights written tensor by tensor, with no more than a few of them in memory.

``mx.save_safetensors`` holds all tensors of a file until the last one is computed. Shapes and
dtypes of lazy arrays are known beforehand, so here the header is written first and then one tensor
after the other is computed, written and dropped.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import make_shards

from specstream_mlx.errors import UserError
from specstream_mlx.files import not_finite

_DTYPES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.uint16: "U16",
    mx.uint8: "U8",
    mx.uint64: "U64",
    mx.int64: "I64",
    mx.int32: "I32",
    mx.int16: "I16",
    mx.int8: "I8",
    mx.bool_: "BOOL",
}


@dataclass(frozen=True)
class Deferred:
    """An array that is made when it is written; ``make`` returns it."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    make: Callable[[], mx.array]

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return prod(self.shape) * self.dtype.size


def write_weights(
    directory: Path,
    weights: dict[str, mx.array] | dict[str, Deferred],
    parameters: int,
    count: Callable[[int], None] = lambda _: None,
    *,
    source: Path,
) -> None:
    """Write weights as mlx-lm's ``save_model`` does: ``model*.safetensors`` and their index.

    ``weights`` is emptied: memory stays small only if nothing else refers to the lazy arrays.
    """
    total = sum(tensor.nbytes for tensor in weights.values())
    shards = make_shards(weights)
    weights.clear()
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        places |= dict.fromkeys(shard, name)
        _write_file(directory / name, shard, count, source)
    index = {
        "metadata": {"total_size": total, "total_parameters": parameters},
        "weight_map": dict(sorted(places.items())),
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))


def _write_file(
    path: Path,
    tensors: dict[str, mx.array | Deferred],
    count: Callable[[int], None],
    source: Path,
) -> None:
    """Write one safetensors file, emptying ``tensors``; ``count`` is told the bytes of each."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in list(tensors):
            tensor = tensors.pop(name)
            if isinstance(tensor, Deferred):
                tensor = tensor.make()
            if not_finite({name: tensor}):
                dtype = str(tensor.dtype).removeprefix("mlx.core.")
                raise UserError(
                    f"{source}: {name} is not finite in {dtype}, expected finite numbers"
                )
            file.write(np.asarray(tensor.reshape(-1).view(mx.uint8)).data)
            count(tensor.nbytes)
            del tensor
            mx.clear_cache()  # Metal's allocator keeps freed buffers of every size it has seen
