"""The header of a GGUF file: its metadata, and type, shape and place of its tensors.

``gguf.GGUFReader`` believes counts and lengths: a damaged one makes it loop and allocate without
end, and it takes 4 seconds for a vocabulary of 50,000 tokens (here 0.07). Here everything is
compared with the size of the file first. Types and sizes of blocks are the package's.
"""

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from specstream_mlx.errors import UserError, is_number, shown
from specstream_mlx.files import short

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_LEAST_TENSOR, _LEAST_PAIR = 8 + 4 + 8 + 4 + 8, 8 + 4 + 1  # bytes that describe one
_SCALARS = dict(zip(map(GGUFValueType, range(8)), "BbHhIif?", strict=True)) | {
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
"""As ``struct`` and numpy write them both."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as the header describes it."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]  # rows first, as in MLX: GGUF writes the innermost dimension first
    offset: int  # of its first byte in the file
    size: int  # in bytes


@dataclass(frozen=True)
class Header:
    """Header of a GGUF file, all places within the file."""

    path: Path
    metadata: Mapping[str, Any]  # numbers, truth values, texts, lists of texts and 1-D arrays
    tensors: Mapping[str, Tensor]

    def refuse(self, problem: str) -> UserError:
        """The error that names the file."""
        return UserError(f"{short(self.path)}: {problem}")

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        value = self.metadata.get(key, default)
        right = type(value) is int and value >= least
        return self._checked(key, value, right, f"an integer of at least {least}")

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0, as short as float32 tells it from others."""
        value = self.metadata.get(key, default)
        right = is_number(value) and 0 < value < 2.0**64
        return float(str(np.float32(self._checked(key, value, right, "a number above 0"))))

    def text(self, key: str, default: str | None = None) -> str | None:
        value = self.metadata.get(key, default)
        return self._checked(key, value, value is None or isinstance(value, str), "a text")

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        return self._checked(key, value, isinstance(value, bool), "true or false")

    def texts(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        return self._checked(key, value, isinstance(value, list), "a list of texts")

    def array(self, key: str, length: int) -> np.ndarray:
        value = self.metadata.get(key)
        right = isinstance(value, np.ndarray) and len(value) == length
        return self._checked(key, value, right, f"{length} numbers")

    def _checked(self, key: str, value: Any, right: bool, expected: str) -> Any:
        if not right:
            raise self.refuse(f"{key} is {_found(value)}, expected {expected}")
        return value

    def data(self, tensor: Tensor) -> np.ndarray:
        """A tensor's bytes, (rows, bytes of a row), which are read from the file when used."""
        flat = np.memmap(self.path, np.uint8, "r", tensor.offset, tensor.size)
        return flat.reshape(prod(tensor.shape[:-1]), -1)


def read_header(path: Path) -> Header:
    """Read and check the header of a GGUF file, whatever the file may be."""
    if not os.path.isfile(path):
        problem = "is not a file" if os.path.lexists(path) else "is missing"
        raise UserError(f"{short(path)} {problem}, expected a GGUF file")
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise UserError(
                    f"{short(path)} is no GGUF file, which begins with GGUF, expected one as a "
                    "model that is a file"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                return _Reader(path, buffer).header()
    except OSError as error:
        raise UserError(f"{short(path)} cannot be read: {error.strerror or error}") from None
    except UserError:
        raise
    except ValueError as error:  # the reader's
        raise UserError(f"{short(path)}: {error}") from None


def _found(value: Any) -> str:
    if value is None:
        return "missing"
    return f"a list of {len(value)}" if isinstance(value, list | np.ndarray) else shown(value)


class _Reader:
    """A reader of one value after the other, never beyond the end of the file."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path, self._buffer, self._place = path, buffer, len(_MAGIC)

    def header(self) -> Header:
        version = self._number("I")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise ValueError("it is big-endian, expected a little-endian file")
            raise ValueError(f"its GGUF version is {version}, expected one of {_VERSIONS}")
        tensors = self._count("tensors", _LEAST_TENSOR)
        metadata: dict[str, Any] = {}
        for _ in range(self._count("metadata", _LEAST_PAIR)):
            key = self._name(metadata)
            metadata[key] = self._value(key, self._number("I"))
        parts = metadata.get("split.count", 0)
        if not isinstance(parts, int) or parts not in (0, 1):
            raise ValueError(
                f"split.count is {_found(parts)}, expected a whole model in one file: merge its "
                "parts first, with llama-gguf-split --merge"
            )
        return Header(self._path, metadata, self._tensors(tensors, metadata))

    def _value(self, key: str, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self._text(key)
        if kind != GGUFValueType.ARRAY:
            return self._number(self._scalar(key, kind))
        kind = self._number("I")
        if kind == GGUFValueType.STRING:
            return [self._text(key) for _ in range(self._count(key, 8))]
        dtype = np.dtype(f"<{self._scalar(key, kind)}")
        return np.frombuffer(self._bytes(self._count(key, dtype.itemsize) * dtype.itemsize), dtype)

    def _scalar(self, key: str, kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"{key} has a value of type {kind}, expected a number or a text")
        return _SCALARS[GGUFValueType(kind)]

    def _tensors(self, count: int, metadata: Mapping[str, Any]) -> dict[str, Tensor]:
        places: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for _ in range(count):
            name, dimensions = self._name(places), self._number("I")
            if not 1 <= dimensions <= 4:
                raise ValueError(f"{name} has {dimensions} dimensions, expected 1 to 4")
            shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
            places[name] = self._number("I"), shape, self._number("Q")
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {_found(alignment)}, expected a power of two")
        begin = -(-self._place // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        end, before = begin, ""
        for name, (number, shape, offset) in sorted(places.items(), key=lambda item: item[1][2]):
            if number not in GGML_QUANT_SIZES:
                raise ValueError(f"{name} has the type {number}, which GGUF does not define")
            kind = GGMLQuantizationType(number)
            width, size = GGML_QUANT_SIZES[kind]
            if not all(shape) or shape[-1] % width:
                raise ValueError(
                    f"{name} has shape {shape}, expected one whose rows are whole blocks of "
                    f"{width} for {kind.name}"
                )
            if offset % alignment:
                raise ValueError(
                    f"{name} is at offset {offset}, expected a multiple of {alignment}"
                )
            tensors[name] = Tensor(kind, shape, begin + offset, prod(shape) // width * size)
            if tensors[name].offset + tensors[name].size > len(self._buffer):
                raise ValueError(f"it is cut short or damaged: {name} reaches beyond its end")
            if tensors[name].offset < end:
                raise ValueError(
                    f"it is damaged: {name} begins at byte {begin + offset}, within {before}, "
                    f"which ends at {end}"
                )
            end, before = tensors[name].offset + tensors[name].size, name
        return tensors

    def _count(self, what: str, least: int) -> int:
        """A number of things of which each takes at least ``least`` bytes."""
        count = self._number("Q")
        if count * least > len(self._buffer) - self._place:
            raise ValueError(
                f"it is cut short or damaged: it announces {count} values of {what}, "
                "more than it can hold"
            )
        return count

    def _name(self, others: Mapping[str, Any]) -> str:
        name = self._text("a name")
        if not name.isprintable():
            raise ValueError(f"{shown(name)} is among its names, expected plain text")
        if name in others:
            raise ValueError(f"it has {short(name)} twice")
        return name

    def _text(self, what: str) -> str:
        try:
            return str(self._bytes(self._number("Q")), "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{what} is not UTF-8 text") from None

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))[0]

    def _bytes(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._buffer):
            raise ValueError(
                f"it is cut short or damaged: its header goes on after byte {len(self._buffer)}"
            )
        data, self._place = self._buffer[self._place : end], end
        return data
