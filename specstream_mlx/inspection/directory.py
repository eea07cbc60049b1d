"""What lies in a directory: a base model, an adapter for one, and what the adapter costs.

Headers and configurations are read, never weights; printing is the command line's.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from ..adapters.description import ADAPTER_CONFIG, AdapterDescription, describe
from ..adapters.torch_files import STREAM_CONFIG
from ..checked_files import Headers
from ..config import UserError
from .base import BaseReport, TensorGroup, group_tensors, inspect_base

PAPER_STREAMS = 4

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
        parameters: by part: ``streams``, ``pruner``, ``lora`` and ``other``.
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


@dataclass(frozen=True)
class MedusaCost:
    """Parameters of Medusa heads on the same base, see ``medusa_cost``."""

    heads: int
    per_head: int
    parameters: int


@dataclass(frozen=True)
class Report:
    """What ``inspect`` found.

    Attributes:
        base: the base model; with an adapter, its base where it could be found.
        adapter: ``None`` for a base model's directory.
        medusa: ``None`` where the base is unknown.
        notes: sentences about what is missing or does not fit.
    """

    base: BaseReport | None
    adapter: AdapterReport | None
    medusa: MedusaCost | None
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def medusa_cost(hidden_size: int, vocab_size: int, heads: int) -> MedusaCost:
    """What Medusa heads (Cai et al., arXiv 2401.10774, section 2.1.1) would add to a base.

    Each head is ``W2 (SiLU(W1 h + b1) + h)``: a residual block with weight and bias, h*h + h, and a
    head of its own, V*h. The paper's Eq. leaves the bias out; the published code and checkpoints
    (FasterDecoding/Medusa: ``{i}.0.linear.weight``, ``{i}.0.linear.bias``, ``{i}.1.weight``) have
    it.

    Args:
        hidden_size: h.
        vocab_size: V.
        heads: as many as streams.
    """
    per_head = hidden_size * hidden_size + hidden_size + vocab_size * hidden_size
    return MedusaCost(heads, per_head, heads * per_head)


def inspect_directory(path: Path, base: Path | None = None) -> Report:
    """Describe what lies at ``path``.

    Args:
        path: a base model (Hugging Face's or mlx-lm's format), a converted adapter, or an adapter
            of the PyTorch side (PEFT LoRA, speculative_streaming files, or both).
        base: the base of an adapter; by default the one it names, if that is a directory.

    Raises:
        UserError: the directory is none of these, or a file is missing or damaged.
    """
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {found}, expected the directory of a model or an adapter")
    is_adapter = (path / ADAPTER_CONFIG).exists() or (path / STREAM_CONFIG).exists()
    if any(path.glob("model*.safetensors")) or not is_adapter:
        if not (path / "config.json").exists():
            raise UserError(
                f"{path} has neither config.json nor {ADAPTER_CONFIG} nor {STREAM_CONFIG}, "
                "expected the directory of a model or an adapter"
            )
        report = inspect_base(path)
        cost = medusa_cost(report.hidden_size, report.vocab_size, PAPER_STREAMS)
        return Report(report, None, cost, _unsupported(report))
    adapter = _adapter_report(describe(path))
    named = Path(adapter.base_model) if adapter.base_model else None
    if base is None and named is not None and (named / "config.json").exists():
        base = named
    if base is None:
        name = adapter.base_model or "unnamed"
        note = f"the base ({name}) is not a directory here, so its cost is not compared"
        return Report(None, adapter, None, [note])
    base_report = inspect_base(base)
    streams = adapter.streams["num_streams"] if adapter.streams else PAPER_STREAMS
    return Report(
        base_report,
        adapter,
        medusa_cost(base_report.hidden_size, base_report.vocab_size, streams),
        _unsupported(base_report) + _misfits(adapter, base_report),
    )


def _unsupported(base: BaseReport) -> list[str]:
    return [f"streams cannot run on this model: {base.refusal}"] if base.refusal else []


def _misfits(adapter: AdapterReport, base: BaseReport) -> list[str]:
    found = adapter.streams["base_fingerprint"] if adapter.streams else ""
    if found in ("", base.fingerprint):
        return []
    return [
        f"the adapter was made for another base: fingerprint {found}, "
        f"{base.path} has {base.fingerprint}"
    ]


def _adapter_report(found: AdapterDescription) -> AdapterReport:
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
    counts: Counter[str] = Counter(streams=0, pruner=0, lora=0, other=0)
    for name, (shape, _) in headers.items():
        part = name.split(".")[0]
        if part not in ("streams", "pruner"):
            part = "lora" if _LORA_TENSOR.fullmatch(name) else "other"
        counts[part] += prod(shape)
    return dict(counts)
