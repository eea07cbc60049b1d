"""Adapters: from PEFT's and the trainer's directories to those that MLX loads.

Streams and pruner keep their names and shapes. An adapter of mlx-lm's form is checked and written
as it is.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from specstream_mlx.adapters.description import STREAM_FILE, check_vocabulary, describe, tensor_file
from specstream_mlx.adapters.files import LoraPart, read_lora, write_adapter
from specstream_mlx.adapters.lora import place_in_layer
from specstream_mlx.errors import VOCABULARY, UserError
from specstream_mlx.files import check_shapes, staged_directory
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.stream_config import StreamConfig

from .overwrite import check_replaceable
from .peft import read_peft_lora
from .source_tensors import read_arrays


def convert_adapter(
    source: Path,
    base: Path,
    target: Path,
    dtype: str | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Convert LoRA in PEFT's or mlx-lm's files, streams, or both, to ``target``.

    Args:
        source: directory of the adapter.
        base: directory of the base, in Hugging Face's or MLX format.
        target: directory for the result, which appears once it is complete.
        dtype: of the written tensors, such as ``float16``; ``None`` keeps the source's.
        overwrite: replace what is at ``target``, if ``check_replaceable`` allows it.

    Raises:
        UserError: a file is missing, damaged or does not fit the base, it is a variant that MLX's
            format cannot hold, or the target exists or cannot be written.
    """
    _convert({"": source}, base, target, dtype, overwrite)


def convert_adapters(
    sources: Sequence[Path],
    base: Path,
    target: Path,
    dtype: str | None = None,
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Convert several adapters, all or none, to directories of ``target``, which are returned."""
    names = [adapter_name(source) for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two adapters are named {name}, expected a different name for each")
    _convert(dict(zip(names, sources, strict=True)), base, target, dtype, overwrite)
    return [target / name for name in names]


def _convert(
    sources: Mapping[str, Path], base: Path, target: Path, dtype: str | None, overwrite: bool
) -> None:
    read = list(sources.values())
    check_replaceable(target, base, read, overwrite=overwrite)
    config = read_config(base)
    model = cache(lambda: read_model(base, to_run=False)[0])  # where there is LoRA
    adapters = {name: _read(source, config, model, dtype) for name, source in sources.items()}
    with staged_directory(target, replace=overwrite) as scratch:
        for name, parts in adapters.items():
            (scratch / name).mkdir(exist_ok=True)
            write_adapter(scratch / name, *parts)
        check_replaceable(target, base, read, overwrite=overwrite)  # again: it took a while


def adapter_name(source: Path) -> str:
    """The directory's name, or its parent's: a training run writes to ``<run>/adapter``."""
    path = Path(os.path.realpath(source))
    return path.parent.name if path.name == "adapter" else path.name


def _read(
    source: Path, base: dict[str, Any], model: Callable[[], nn.Module], dtype: str | None
) -> tuple[LoraPart, StreamConfig | None, dict[str, mx.array]]:
    """Read one adapter in MLX's names and shapes; ``base`` is its base's configuration."""
    description = describe(source)
    description.check_base(base)
    config, stream_config, lora = description.config, description.stream_config, LoraPart()
    if config and (description.is_peft or "lora_parameters" not in config):
        lora = read_peft_lora(source, model())
    elif config:
        kind = config.get("fine_tune_type", "lora")
        tensors = read_lora(description, model())
        lora = LoraPart(tensors, config["lora_parameters"], config["num_layers"], kind)
    streams = {} if stream_config is None else _read_streams(source, stream_config, base)
    if description.format == "pytorch" and stream_config is not None:
        outside = [name for name in lora.tensors if place_in_layer(name) is None]
        if outside:  # the trainer refuses it too
            module = outside[0].rpartition(".")[0]
            raise UserError(
                f"{source} has streams beside LoRA of {module}, expected it in decoder layers alone"
            )
    if dtype is not None:
        kind = getattr(mx, dtype)
        lora = replace(lora, tensors={n: t.astype(kind) for n, t in lora.tensors.items()})
        streams = {n: t if n == VOCABULARY else t.astype(kind) for n, t in streams.items()}
    return lora, stream_config, streams


def _read_streams(source: Path, config: StreamConfig, base: dict[str, Any]) -> dict[str, mx.array]:
    path = tensor_file(source / STREAM_FILE)
    tensors = read_arrays(path)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    check_shapes(path, shapes, config.tensor_shapes())
    if VOCABULARY in tensors:
        check_vocabulary(path, np.array(tensors[VOCABULARY]).tolist(), base["vocab_size"])
    return tensors
