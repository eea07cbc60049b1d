"""Bases from one GGUF file: its blocks become MLX's groups without being quantized anew.

The ``gguf`` package gives the types and checks the repacking in the tests; ``mx.load`` reads GGUF
too, but decodes some types wrongly and leaves tensors out. Nothing in the file is executed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import save_config

from specstream_mlx.files import check_shapes, staged_directory

from .base import Deferred, Progress, counted, write_weights
from .gguf_architectures import ROPE_FACTORS, Target, layout
from .gguf_blocks import DENSE, GROUP_SIZE, PACKINGS, floats, repack
from .gguf_header import Header, Tensor, read_header
from .gguf_tokenizer import read_gguf_tokenizer
from .overwrite import check_replaceable


@np.errstate(all="ignore")  # what is not finite is looked for where it is written
def convert_gguf(
    source: Path,
    target: Path,
    dtype: str | None = None,
    progress: Progress = lambda done, total: None,
    *,
    overwrite: bool = False,
) -> list[str]:
    """Write the model of a GGUF file in MLX format to ``target``, which appears once complete.

    Args:
        source: a GGUF file that holds a whole model.
        target: directory for the result.
        dtype: of scales, biases and dense tensors; ``None`` for the smallest one that holds all of
            them exactly, where a float32 matrix counts as one that is to stay so.
        progress: called before the first tensor and after each.
        overwrite: replace what is at ``target``, if ``check_replaceable`` allows it.

    Returns:
        What became of each type of the file, a sentence each.

    Raises:
        UserError: the file is damaged or holds what is not known here, or the target cannot be
            written.
    """
    header = read_header(source)
    check_replaceable(target, source, overwrite=overwrite)
    _check_types(header)
    tokenizer, ends = read_gguf_tokenizer(header)
    config, targets = layout(header, len(header.texts("tokenizer.ggml.tokens")))
    tensors = {name: t for name, t in header.tensors.items() if name != ROPE_FACTORS}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    check_shapes(source, shapes, {name: place.shape for name, place in targets.items()})
    fitting = {name: _fitting(header, tensor, targets[name]) for name, tensor in tensors.items()}
    held = dtype or _smallest(tensors, fitting)
    special: dict[str, Any] = {"eos_token_id": ends if len(ends) > 1 else ends[0]}
    if tokenizer.bos_token_id is not None:
        special["bos_token_id"] = tokenizer.bos_token_id
    config |= {**special, "dtype": held, **_quantization(tensors, targets)}
    with staged_directory(target, replace=overwrite) as scratch:
        parts = {
            name: _deferred(header, tensor, targets[name], getattr(mx, held))
            for name, tensor in tensors.items()
        }
        sizes = {name: sum(a.nbytes for a in arrays.values()) for name, arrays in parts.items()}
        weights = {name: array for arrays in parts.values() for name, array in arrays.items()}
        parameters = sum(map(prod, shapes.values()))
        count = counted(progress, sum(sizes.values()))
        write_weights(scratch, weights, parameters, count, source)
        save_config(config, scratch / "config.json")
        (scratch / "generation_config.json").write_text(json.dumps(special, indent=4))
        tokenizer.save_pretrained(scratch)
        check_replaceable(target, source, overwrite=overwrite)  # again: it took a while
    notes, stored = [], {name: tensor.size for name, tensor in tensors.items()}
    for kind in dict.fromkeys(tensor.kind for tensor in tensors.values()):
        names = [name for name, tensor in tensors.items() if tensor.kind == kind]
        packing, change = PACKINGS.get(kind), "exact"
        if packing and packing.parts is None:
            change = "quantized anew"
        elif held != "float32" and any(held not in fitting[name] for name in names):
            change = f"rounded to {held}"
        before, after = (sum(of[name] for name in names) for of in (stored, sizes))
        notes.append(
            f"{len(names)} of {kind.name} in {f'{packing.bits} bits' if packing else held}, "
            f"{change}: {before:,} bytes are {after:,}"
        )
    rounded = next((name for name, names in fitting.items() if "float16" not in names), None)
    if dtype is None and held == "float32" and rounded:
        notes.append(
            f"scales and dense tensors are float32, since {rounded} does not fit float16 exactly; "
            "with --dtype float16 they are rounded to it"
        )
    return notes


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


def _quantization(tensors: Mapping[str, Tensor], targets: Mapping[str, Target]) -> dict[str, Any]:
    """The entry that mlx-lm reads of packed modules: most modules' bits, and the others by name."""
    bits = {
        targets[name].module: PACKINGS[tensor.kind].bits if tensor.kind in PACKINGS else None
        for name, tensor in tensors.items()
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
    entry = {"group_size": GROUP_SIZE, "bits": usual, "mode": "affine", **others}
    return {"quantization": entry}


def _deferred(
    header: Header, tensor: Tensor, place: Target, dtype: mx.Dtype
) -> dict[str, Deferred]:
    """The arrays that a tensor becomes, made one after the other when they are written."""
    kind, made = tensor.kind, list[mx.array]()

    def dense() -> mx.array:
        parts = [
            mx.array(part - np.float32(place.subtracted)).astype(dtype)
            for part in floats(kind, place.ordered(header.data(tensor)))
        ]
        return mx.concatenate(parts).reshape(place.shape)

    def part() -> mx.array:
        if not made:
            made.extend(reversed(repack(kind, place.ordered(header.data(tensor)), dtype)))
        return made.pop()

    if kind in DENSE:
        return {place.name: Deferred(place.shape, dtype, dense)}
    rows, width = place.shape
    groups = (rows, width // GROUP_SIZE)
    words = (rows, width * PACKINGS[kind].bits // 32)
    return {
        f"{place.module}.weight": Deferred(words, mx.uint32, part),
        f"{place.module}.scales": Deferred(groups, dtype, part),
        f"{place.module}.biases": Deferred(groups, dtype, part),
    }
