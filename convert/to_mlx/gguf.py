"""Bases from one GGUF file: its blocks become MLX's groups without being quantized anew.

The ``gguf`` package gives the types and checks the repacking in the tests; ``mx.load`` reads GGUF
too, but decodes some types wrongly and leaves tensors out. Nothing in the file is executed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import save_config

from specstream_mlx.errors import UserError
from specstream_mlx.files import check_shapes, staged_directory
from specstream_mlx.models.architectures import check_config

from .base import Deferred, Progress, counted, write_weights
from .gguf_architectures import ROPE_FACTORS, Target, layout
from .gguf_blocks import DENSE, GROUP_SIZE, PACKINGS, floats, repack
from .gguf_header import Header, Tensor, read_header
from .gguf_tokenizer import read_gguf_tokenizer
from .overwrite import check_replaceable

_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}


@dataclass(frozen=True)
class HeldType:
    """Form in which the tensors of one type of the file are held.

    Attributes:
        kind: the type's name in GGUF.
        tensors: number of tensors.
        held: their form in MLX: bits, or a dtype.
        change: ``exact``; ``rounded``, where scales or dense values do not fit the dtype; or
            ``quantized anew``.
        size: their bytes in the file.
        held_size: their bytes in the result.
    """

    kind: str
    tensors: int
    held: str
    change: str
    size: int
    held_size: int

    def __str__(self) -> str:
        return (
            f"{self.tensors} of {self.kind} in {self.held}, {self.change}: "
            f"{self.size:,} bytes are {self.held_size:,}"
        )


@dataclass(frozen=True)
class GgufReport:
    """Report of a conversion.

    Attributes:
        dtype: of scales, biases and dense tensors, and so of the activations.
        obstacle: the first tensor whose numbers float16 would round, where that is why ``dtype``
            is float32; ``None`` otherwise.
        types: one entry for each type of the file.
    """

    dtype: str
    obstacle: str | None
    types: tuple[HeldType, ...]


@np.errstate(all="ignore")  # what is not finite is looked for where it is written
def convert_gguf(
    source: Path,
    target: Path,
    dtype: str | None = None,
    progress: Progress = lambda done, total: None,
    *,
    overwrite: bool = False,
) -> GgufReport:
    """Write the model of a GGUF file in MLX format to ``target``, which appears once complete.

    Args:
        source: a GGUF file that holds a whole model.
        target: directory for the result.
        dtype: of scales, biases and dense tensors: ``float16``, ``bfloat16`` or ``float32``;
            ``None`` for the smallest one that holds all of them exactly, where a matrix that is
            float32 in the file counts as one that is to stay so.
        progress: called before the first tensor and after each.
        overwrite: replace what is at ``target``, if ``check_replaceable`` allows it.

    Raises:
        UserError: the file is damaged, not a GGUF, one of several parts, or holds an architecture,
            a type, a tensor, a setting or a tokenizer that is not known here; or the target cannot
            be written, exists, or may not be replaced.
    """
    header = read_header(source)
    check_replaceable(target, source, overwrite=overwrite)
    _check_types(header)
    tokenizer, ends = read_gguf_tokenizer(header)
    plan = layout(header, len(header.texts("tokenizer.ggml.tokens")))
    tensors = {name: t for name, t in header.tensors.items() if name != ROPE_FACTORS}
    expected = {name: place.shape for name, place in plan.tensors.items()}
    check_shapes(source, {name: tensor.shape for name, tensor in tensors.items()}, expected)
    places = {name: (tensor, plan.tensors[name]) for name, tensor in tensors.items()}
    begin = {} if tokenizer.bos_token_id is None else {"bos_token_id": tokenizer.bos_token_id}
    special = {**begin, "eos_token_id": ends if len(ends) > 1 else ends[0]}
    fitting = {name: _fitting(header, *place) for name, place in places.items()}
    held = dtype or _smallest(tensors, fitting)
    config = {**plan.config, **special, "dtype": held}
    quantization = _quantization(places)
    if quantization:
        config["quantization"] = quantization
    try:
        check_config(config)
    except UserError as error:
        raise header.refuse(str(error)) from None
    with staged_directory(target, replace=overwrite) as scratch:
        arrays = {name: _deferred(header, *place, _DTYPES[held]) for name, place in places.items()}
        sizes = {name: sum(a.nbytes for a in parts.values()) for name, parts in arrays.items()}
        weights = {name: array for parts in arrays.values() for name, array in parts.items()}
        parameters = sum(prod(tensor.shape) for tensor in tensors.values())
        count = counted(progress, sum(sizes.values()))
        write_weights(scratch, weights, parameters, count, source)
        save_config(config, scratch / "config.json")
        (scratch / "generation_config.json").write_text(json.dumps(special, indent=4))
        tokenizer.save_pretrained(scratch)
        check_replaceable(target, source, overwrite=overwrite)  # again: it took a while
    obstacle = None
    if dtype is None and held == "float32":
        obstacle = next((name for name, names in fitting.items() if "float16" not in names), None)
    types = _types(
        tensors, sizes, {name: held in {"float32", *fitting[name]} for name in tensors}, held
    )
    return GgufReport(held, obstacle, types)


def _types(
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    fits: Mapping[str, bool],
    dtype: str,
) -> tuple[HeldType, ...]:
    """Forms in which each type is held, in the order of the file."""
    types = []
    for kind in dict.fromkeys(tensor.kind for tensor in tensors.values()):
        names = [name for name, tensor in tensors.items() if tensor.kind == kind]
        packing = PACKINGS.get(kind)
        change = "exact" if all(fits[name] for name in names) else f"rounded to {dtype}"
        types.append(
            HeldType(
                kind.name,
                len(names),
                f"{packing.bits} bits" if packing else dtype,
                "quantized anew" if packing and not packing.exact else change,
                sum(tensors[name].size for name in names),
                sum(sizes[name] for name in names),
            )
        )
    return tuple(types)


def _check_types(header: Header) -> None:
    """Check that MLX can hold all types; it has no packed norms and biases."""
    for name, tensor in header.tensors.items():
        known = DENSE if len(tensor.shape) == 1 else (*PACKINGS, *DENSE)
        if tensor.kind not in known:
            names = ", ".join(kind.name for kind in known)
            raise header.refuse(f"{name} is of type {tensor.kind.name}, expected one of {names}")


def _fitting(header: Header, tensor: Tensor, place: Target) -> set[str]:
    """The 16-bit dtypes that hold a tensor's scales and biases, or its values, exactly."""
    fitting = {"float16", "bfloat16"}
    for numbers in floats(tensor.kind, header.data(tensor)):
        numbers = numbers - np.float32(place.subtracted)
        if not np.array_equal(numbers.astype(np.float16), numbers):
            fitting.discard("float16")
        if (numbers.view(np.uint32) & 0xFFFF).any():
            fitting.discard("bfloat16")
        if not fitting:
            break
    return fitting


def _smallest(tensors: Mapping[str, Tensor], fitting: Mapping[str, set[str]]) -> str:
    """The dtype that holds all numbers exactly: one for all, or MLX would compute in float32."""
    matrices = {tensor.kind.name for tensor in tensors.values() if len(tensor.shape) > 1}
    if "F32" not in matrices:
        order = ("bfloat16", "float16") if "BF16" in matrices else ("float16", "bfloat16")
        for dtype in order:
            if all(dtype in names for names in fitting.values()):
                return dtype
    return "float32"


def _quantization(places: Mapping[str, tuple[Tensor, Target]]) -> dict[str, Any]:
    """Entry that mlx-lm reads of the packed modules: most modules' bits, and the others by name."""
    bits = {
        place.module: PACKINGS[tensor.kind].bits if tensor.kind in PACKINGS else None
        for tensor, place in places.values()
        if len(tensor.shape) > 1
    }
    packed = Counter(number for number in bits.values() if number)
    if not packed:
        return {}
    usual = packed.most_common(1)[0][0]
    others = {
        module: {"group_size": GROUP_SIZE, "bits": number, "mode": "affine"} if number else False
        for module, number in bits.items()
        if number != usual
    }
    return {"group_size": GROUP_SIZE, "bits": usual, "mode": "affine", **others}


def _deferred(
    header: Header, tensor: Tensor, place: Target, dtype: mx.Dtype
) -> dict[str, Deferred]:
    """The arrays that a tensor becomes, made one after the other when they are written."""

    def rows() -> np.ndarray:
        return place.ordered(header.data(tensor))

    if tensor.kind in DENSE:

        def values() -> mx.array:
            parts = [
                mx.array(part - np.float32(place.subtracted)).astype(dtype)
                for part in floats(tensor.kind, rows())
            ]
            return mx.concatenate(parts).reshape(place.shape)

        return {place.name: Deferred(place.shape, dtype, values)}
    made: list[mx.array] = []

    def part() -> mx.array:
        if not made:
            made.extend(reversed(repack(tensor.kind, rows(), dtype)))
        return made.pop()

    count, width = place.shape
    groups = (count, width // GROUP_SIZE)
    words = (count, width * PACKINGS[tensor.kind].bits // 32)
    return {
        f"{place.module}.weight": Deferred(words, mx.uint32, part),
        f"{place.module}.scales": Deferred(groups, dtype, part),
        f"{place.module}.biases": Deferred(groups, dtype, part),
    }
