"""Tensors of an adapter to be converted, as MLX arrays; only torch's own formats need torch."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx

from specstream_mlx.adapters.description import tensor_file
from specstream_mlx.errors import VOCABULARY, UserError, install
from specstream_mlx.files import chosen_files
from specstream_mlx.files import read_arrays as read_safetensors


def read_arrays(path: Path) -> dict[str, mx.array]:
    """Read a safetensors file, or the ``.bin`` or ``.pt`` file in its place.

    It must hold finite floating-point tensors, and may hold a draft vocabulary.
    """
    path = tensor_file(path)
    arrays = read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path)
    for name, array in arrays.items():
        integers = name == VOCABULARY
        if not (array.dtype == mx.int32 if integers else mx.issubdtype(array.dtype, mx.floating)):
            expected = "int32" if integers else "a floating-point one"
            raise UserError(f"{path}: {name} has dtype {array.dtype}, expected {expected}")
    return arrays


def arrays_of_files(source: Path, what: str) -> Iterator[dict[str, mx.array]]:
    """Read the tensors of a directory file by file: its safetensors, or else torch's files.

    Integers, which torch has in 64 bits, become int32. ``what`` the directory is, an error says.
    """
    torch_files = "*.pt", "*.bin", "*.pth"
    files = chosen_files(source, "*.safetensors") or chosen_files(
        source, *torch_files, whole="pytorch_model.bin"
    )
    if not files:
        raise UserError(
            f"{what} {source} has no *.safetensors, *.pt or *.bin, expected its tensors"
        )
    for file in files:
        if file.suffix == ".safetensors":
            yield read_safetensors(file)
        else:
            yield {
                name: array if mx.issubdtype(array.dtype, mx.floating) else array.astype(mx.int32)
                for name, array in read_torch(file).items()
            }


def read_torch(path: Path) -> dict[str, mx.array]:
    """Read tensors that torch has written, each in its own dtype."""
    try:
        from ..pytorch.adapter_files import read_tensors
    except ModuleNotFoundError as error:
        raise UserError(f"reading {path} needs {error.name}: {install('torch')}") from None
    arrays = {}
    for name, tensor in read_tensors(path).items():
        if tensor.is_floating_point():
            array = mx.array(tensor.detach().float().numpy())  # numpy has no bfloat16
            dtype = getattr(mx, str(tensor.dtype).removeprefix("torch."), mx.float32)
            arrays[name] = array.astype(dtype)
        else:
            arrays[name] = mx.array(tensor.numpy())
    return arrays
