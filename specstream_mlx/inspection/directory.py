"""Contents of a directory: a base model, or an adapter, and what the adapter costs its base.

Headers and configurations are read, never weights; printing is the command line's.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..adapters.description import ADAPTER_CONFIG
from ..adapters.torch_files import STREAM_CONFIG
from ..checked_files import short
from ..config import UserError
from .adapter import AdapterReport, inspect_adapter
from .base import BaseReport, inspect_base

PAPER_STREAMS = 4
"""Streams of the papers, for the comparison where no adapter says how many there are."""


@dataclass(frozen=True)
class MedusaCost:
    """Parameters of Medusa heads on the same base, see ``medusa_cost``."""

    heads: int
    per_head: int
    parameters: int


@dataclass(frozen=True)
class Report:
    """The report of ``inspect`` about a directory.

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
    """The cost of Medusa heads (Cai et al., arXiv 2401.10774, section 2.1.1) on a base.

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
    """Find out whether ``path`` is a base model or an adapter, and describe it.

    Args:
        path: a base model (Hugging Face's or mlx-lm's format), a converted adapter, or an adapter
            of the PyTorch side (PEFT LoRA, speculative_streaming files, or both).
        base: the base of an adapter; by default the one it names, if that is a directory.

    Raises:
        UserError: the directory is none of these, or a file is missing or damaged.
    """
    if not os.path.isdir(path):
        found = "is a file" if os.path.exists(path) else "does not exist"
        raise UserError(f"{short(path)} {found}, expected the directory of a model or an adapter")
    is_adapter = (path / ADAPTER_CONFIG).exists() or (path / STREAM_CONFIG).exists()
    if is_adapter and not any(path.glob("model*.safetensors")):
        return _adapter_and_base(inspect_adapter(path), base)
    if not (path / "config.json").exists():
        raise UserError(
            f"{path} has neither config.json nor {ADAPTER_CONFIG} nor {STREAM_CONFIG}, "
            "expected the directory of a model or an adapter"
        )
    report = inspect_base(path)
    cost = medusa_cost(report.hidden_size, report.vocab_size, PAPER_STREAMS)
    return Report(report, None, cost, _unsupported(report))


def _adapter_and_base(adapter: AdapterReport, base: Path | None) -> Report:
    """An adapter with its base, where that is given or is a directory that the adapter names."""
    named = adapter.base_model
    if base is None and named and os.path.exists(os.path.join(named, "config.json")):
        base = Path(named)
    if base is None:
        name = short(named) or "unnamed"
        note = f"the base ({name}) is not a directory here, so its cost is not compared"
        return Report(None, adapter, None, [note])
    report = inspect_base(base)
    streams = adapter.streams["num_streams"] if adapter.streams else PAPER_STREAMS
    cost = medusa_cost(report.hidden_size, report.vocab_size, streams)
    return Report(report, adapter, cost, _unsupported(report) + _misfits(adapter, report))


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
