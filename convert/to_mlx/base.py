"""Base models: from Hugging Face's or mlx-lm's format to mlx-lm's, quantized if asked for.

Arrays stay lazy until they are written, so memory holds one written file of at most a GB, not the
model. That is why a model of an untested architecture is not run here; loading it checks it.
"""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.convert import QUANT_RECIPES, mixed_quant_predicate_builder
from mlx_lm.utils import get_total_parameters, make_shards, quantize_model, save_config

from specstream_mlx.errors import UserError
from specstream_mlx.files import check_finite, not_finite, read_text, staged_directory
from specstream_mlx.loading.load import read_model, read_tokenizer
from specstream_mlx.loading.model_paths import weight_files

from .overwrite import check_replaceable

_EMBEDDINGS_RECIPE = "embeddings_4_8"  # as llama.cpp's 4-bit files mostly are
RECIPES = (*QUANT_RECIPES, _EMBEDDINGS_RECIPE)

Progress = Callable[[int, int], None]
"""A function of the bytes checked and written so far, and of all that will be."""


@dataclass(frozen=True)
class Quantization:
    """The affine quantization of a base's layers; none without bits and recipe.

    ``recipe`` is one of ``RECIPES``, instead of ``bits``: mlx-lm's, or ``embeddings_4_8``, which
    keeps embeddings and head at 8 bits.
    """

    bits: int | None = None
    group_size: int = 64
    recipe: str | None = None


def convert_base(
    source: Path,
    target: Path,
    quantization: Quantization = Quantization(),
    dtype: str | None = None,
    progress: Progress = lambda done, total: None,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``source`` in MLX format to ``target``, which appears once it is complete.

    A model that is quantized already keeps its packed weights.

    Args:
        source: directory with ``config.json``, safetensors and tokenizer files.
        target: directory for the result.
        quantization: of its layers.
        dtype: of the weights that are not quantized; ``None`` keeps the source's.
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
        if quantization.bits or quantization.recipe:
            config = quantize(source, model, config, quantization)
        parameters = get_total_parameters(model)
        weights = dict(tree_flatten(model.parameters()))
        del model  # its arrays are to go as they are written
        tokenizer = read_tokenizer(source, config)
        files = weight_files(source)
        total = sum(tensor.nbytes for tensor in weights.values())
        count = counted(progress, total + sum(file.stat().st_size for file in files))
        for file in files:  # quantization would make numbers of NaN
            check_finite(file, count)
        write_weights(scratch, weights, parameters, count, source)
        save_config(config, scratch / "config.json")
        tokenizer.save_pretrained(scratch)
        generation = source / "generation_config.json"
        if generation.exists():
            (scratch / generation.name).write_text(read_text(generation), "utf-8")
        check_replaceable(target, source, overwrite=overwrite)  # again: it took a while


def counted(progress: Progress, total: int) -> Callable[[int], None]:
    """A function that adds up bytes for ``progress``."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
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


def quantize(
    source: Path, model: nn.Module, config: dict[str, Any], asked: Quantization
) -> dict[str, Any]:
    """Quantize ``model`` in place, lazily, and return its new configuration.

    Raises:
        UserError: the model is quantized already, or cannot be as asked.
    """
    present = config.get("quantization")
    if present:
        raise UserError(
            f"{source / 'config.json'}: the model is quantized already, {present.get('bits')} bits "
            f"in groups of {present.get('group_size')}; leave out --bits and --quant-predicate to "
            "keep it so, or give an unquantized model"
        )
    predicate: Any = None
    bits, size = asked.bits, asked.group_size

    def embeddings_8(path: str, _: nn.Module) -> dict[str, Any]:
        return {"group_size": size, "bits": 4 if "layers." in path else 8, "mode": "affine"}

    if asked.recipe == _EMBEDDINGS_RECIPE:
        predicate, bits = embeddings_8, 4
    elif asked.recipe is not None:
        try:
            predicate = mixed_quant_predicate_builder(asked.recipe, model, size)
        except ValueError as error:
            raise UserError(f"the recipe {asked.recipe} does not fit the model: {error}") from None
        bits = int(asked.recipe.split("_")[1])
    with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints the bits per weight
        _, config = quantize_model(model, config, size, bits, quant_predicate=predicate)
    if not any("scales" in module for _, module in model.named_modules()):
        raise UserError(
            f"{source}: no layer's width is a multiple of the group size {size}, "
            "so nothing would be quantized"
        )
    return config


@dataclass(frozen=True)
class Deferred:
    """An array that ``make`` returns when it is written."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    make: Callable[[], mx.array]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.size


def write_weights(
    directory: Path,
    weights: dict[str, mx.array] | dict[str, Deferred],
    parameters: int,
    count: Callable[[int], None],
    source: Path,
) -> None:
    """Write weights as mlx-lm's ``save_model`` does, in files of a GB, and their index.

    ``weights`` is emptied: memory stays small only if nothing else refers to the lazy arrays.
    """
    total = sum(tensor.nbytes for tensor in weights.values())
    shards = make_shards(weights, max_file_size_gb=1)
    weights.clear()
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        arrays: dict[str, mx.array] = {}
        for name in list(shard):
            tensor = shard.pop(name)
            arrays[name] = tensor.make() if isinstance(tensor, Deferred) else tensor
            del tensor  # with what it is computed from
            if not_finite({name: arrays[name]}):
                dtype = str(arrays[name].dtype).removeprefix("mlx.core.")
                raise UserError(
                    f"{source}: {name} is not finite in {dtype}, expected finite numbers"
                )
            count(arrays[name].nbytes)
        mx.save_safetensors(str(directory / file), arrays, {"format": "mlx"})
        places |= dict.fromkeys(arrays, file)
        mx.clear_cache()  # Metal's allocator keeps freed buffers of every size it has seen
    index = {
        "metadata": {"total_size": total, "total_parameters": parameters},
        "weight_map": dict(sorted(places.items())),
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))
