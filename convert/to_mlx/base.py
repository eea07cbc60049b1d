"""Base models: from Hugging Face's or mlx-lm's format to mlx-lm's, quantized if asked for.

Arrays stay lazy until they are written, so memory grows with the largest tensor, not with the
model. That is why a model of an untested architecture is not run here; loading it checks it.
"""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import get_total_parameters, quantize_model, save_config

from specstream_mlx.errors import UserError
from specstream_mlx.files import check_finite, staged_directory
from specstream_mlx.loading import read_model, read_tokenizer, weight_files

from .overwrite import check_replaceable
from .recipes import Quantization, quant_predicate
from .weight_files import write_weights

Progress = Callable[[int, int], None]
"""Told how many bytes have been checked and written, and how many there are of both."""


def convert_base(
    source: Path,
    target: Path,
    quantization: Quantization | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``source`` in MLX format to ``target``, which appears once it is complete.

    A model that is quantized already keeps its packed weights.

    Args:
        source: directory with ``config.json``, safetensors and tokenizer files.
        target: directory for the result.
        quantization: of its layers; ``None``: none.
        dtype: dtype of the weights that are not quantized: ``float16``, ``bfloat16`` or
            ``float32``; ``None`` keeps the source's.
        progress: called before the first tensor and after each.
        overwrite: replace what is at ``target``, if ``check_replaceable`` allows it.

    Raises:
        UserError: the source cannot be read as a model or quantized as asked, or the target cannot
            be written, exists, or may not be replaced.
    """
    if not source.is_dir():
        raise UserError(f"the model directory {source} does not exist")
    check_replaceable(target, source, overwrite=overwrite)
    with staged_directory(target, replace=overwrite) as scratch:
        model, config = read_model(source, to_run=False)
        if dtype is not None:
            _cast(model, getattr(mx, dtype))
        if quantization is not None and quantization.is_asked:
            config = _quantize(source, model, config, quantization)
        parameters = get_total_parameters(model)
        weights = dict(tree_flatten(model.parameters()))
        del model  # its arrays are to go as they are written
        tokenizer = read_tokenizer(source, config)
        files = weight_files(source)
        total = sum(tensor.nbytes for tensor in weights.values())
        count = counted(progress, total + sum(file.stat().st_size for file in files))
        for file in files:  # quantization would make numbers of NaN
            check_finite(file, count)
        write_weights(scratch, weights, parameters, count, source=source)
        save_config(config, scratch / "config.json")
        tokenizer.save_pretrained(scratch)
        generation = source / "generation_config.json"
        if generation.exists():
            shutil.copy(generation, scratch)
        check_replaceable(target, source, overwrite=overwrite)  # again: it took a while


def counted(progress: Progress | None, total: int) -> Callable[[int], None]:
    """A function that tells ``progress`` the sum of the bytes that it has been told."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    count(0)
    return count


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast the floating-point weights lazily, except those that the model keeps as they are."""
    castable = getattr(model, "cast_predicate", lambda _: True)

    def cast(path: str, tensor: mx.array) -> mx.array:
        floating = mx.issubdtype(tensor.dtype, mx.floating)
        return tensor.astype(dtype) if floating and castable(path) else tensor

    model.update(tree_map_with_path(cast, model.parameters()))


def _quantize(
    source: Path, model: nn.Module, config: dict[str, Any], asked: Quantization
) -> dict[str, Any]:
    """Quantize ``model`` in place, lazily, and return its new configuration."""
    present = config.get("quantization")
    if present:
        raise UserError(
            f"{source / 'config.json'}: the model is quantized already, {present.get('bits')} bits "
            f"in groups of {present.get('group_size')}; leave out --bits and --quant-predicate to "
            "keep it so, or give an unquantized model"
        )
    predicate, bits, group_size = None, asked.bits, asked.group_size
    if asked.recipe is not None:
        predicate, bits = quant_predicate(asked.recipe, model, group_size, asked.num_msa_layers)
    with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints the bits per weight
        _, config = quantize_model(model, config, group_size, bits, quant_predicate=predicate)
    if not any("scales" in module for _, module in model.named_modules()):
        raise UserError(
            f"{source}: no layer's width is a multiple of the group size {group_size}, "
            "so nothing would be quantized"
        )
    return config
