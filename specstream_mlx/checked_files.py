"""JSON objects and safetensors headers of files that a user gave, checked as they are read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .config import UserError

Headers = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of tensors by name; the dtype as safetensors writes it, such as ``BF16``."""

_FLOAT_DTYPES = ("F32", "F16", "BF16")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``.

    Raises:
        UserError: the file is missing or is not a JSON object.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds a {type(values).__name__}, expected a JSON object")
    return values


def tensor_headers(path: Path) -> Headers:
    """Shape and dtype of every tensor of a safetensors file, without reading the tensors.

    Raises:
        UserError: the file is missing, truncated or of another format.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a complete safetensors file ({error}); "
            "expected one that is neither truncated nor of another format"
        ) from None


def check_tensors(path: Path, found: Headers, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compare a file's tensors with what they must be.

    Args:
        path: the file, for the error.
        found: see ``tensor_headers``.
        expected: shape by name.

    Raises:
        UserError: a tensor is missing, unknown, of another shape, or not floating-point.
    """
    check_shapes(path, {name: shape for name, (shape, _) in found.items()}, expected)
    for name, (_, dtype) in found.items():
        if dtype not in _FLOAT_DTYPES:
            raise UserError(f"{path}: {name} has dtype {dtype}, expected one of {_FLOAT_DTYPES}")


def check_shapes(
    path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Compare the shapes of a file's tensors, by name, with what they must be.

    Raises:
        UserError: a tensor is missing, unknown, or of another shape.
    """
    for name, shape in expected.items():
        if name not in found:
            raise UserError(f"{path} has no tensor {name}, expected one of shape {shape}")
        if found[name] != shape:
            raise UserError(f"{path}: {name} has shape {found[name]}, expected {shape}")
    unknown = sorted(set(found) - set(expected))
    if unknown:
        raise UserError(f"{path} has an unexpected tensor {unknown[0]}")
