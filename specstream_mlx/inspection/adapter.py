"""Parts of an adapter, from its configuration and the headers of its tensor files."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from ..adapters.description import describe
from ..checked_files import Headers
from ..config import VOCABULARY
from .base import TensorGroup, group_tensors

_LORA_TENSOR = re.compile(
    r"(.*)\.(?:lora_(?:a|b|[AB](?:\.\w+)?\.weight|embedding_[AB]|magnitude_vector(?:\.\w+)*)|m)"
)
"""Of mlx-lm or PEFT; ``m`` and ``lora_magnitude_vector`` are DoRA's."""


@dataclass(frozen=True)
class AdapterReport:
    """An adapter directory.

    Attributes:
        path: the directory.
        format: ``mlx``, or ``pytorch`` before conversion.
        streams: the fields of ``StreamConfig``; ``None`` for a plain LoRA adapter.
        lora_rank: ``None`` without LoRA.
        lora_scale: the factor on the product of LoRA's two matrices.
        lora_modules: linear layers with LoRA, layer numbers left out.
        parameters: by part: ``streams``, ``head`` (of the streams, where it is conditioned),
            ``pruner``, ``lora`` and ``other``.
        bytes: on disk.
        tensors: shapes.
        base_model: the base's name or path, as the adapter has it.
    """

    path: str
    format: Literal["mlx", "pytorch"]
    streams: dict[str, Any] | None
    lora_rank: int | None
    lora_scale: float | None
    lora_modules: list[str]
    parameters: dict[str, int]
    bytes: int
    tensors: list[TensorGroup]
    base_model: str

    @property
    def total_parameters(self) -> int:
        """Of all parts."""
        return sum(self.parameters.values())


def inspect_adapter(directory: Path) -> AdapterReport:
    """Describe an adapter directory in MLX's format or of the PyTorch side.

    Raises:
        UserError: a file is missing or damaged, or a tensor of the streams is not what their
            configuration calls for.
    """
    found = describe(directory)
    headers = {**found.stream_headers(), **found.lora_headers()}
    modules = _lora_modules(headers)
    rank, scale = found.rank_and_scale() if modules else (None, None)
    files = [file for file in (found.stream_file, found.lora_file) if file is not None]
    return AdapterReport(
        path=str(found.path),
        format=found.format,
        streams=found.stream_config.to_dict() if found.stream_config else None,
        lora_rank=rank,
        lora_scale=scale,
        lora_modules=modules,
        parameters=_count(headers),
        bytes=sum(file.stat().st_size for file in files),
        tensors=group_tensors(headers),
        base_model=found.base_model,
    )


def _lora_modules(names: Iterable[str]) -> list[str]:
    """Paths of the linear layers with LoRA within a layer, such as ``self_attn.q_proj``."""
    matches = (_LORA_TENSOR.fullmatch(name) for name in names)
    paths = {match[1].removeprefix("base_model.model.") for match in matches if match}
    return sorted({re.sub(r".*\blayers\.\d+\.", "", path) for path in paths})


def _count(headers: Headers) -> dict[str, int]:
    """Parameters by part of the adapter."""
    counts: Counter[str] = Counter(streams=0, head=0, pruner=0, lora=0, other=0)
    for name, (shape, _) in headers.items():
        if name == VOCABULARY:  # a list, nothing that is trained
            continue
        part = name.split(".")[0]
        if name.startswith("streams.head."):
            part = "head"
        elif part not in ("streams", "pruner"):
            part = "lora" if _LORA_TENSOR.fullmatch(name) else "other"
        counts[part] += prod(shape)
    return dict(counts)
