"""Sequences of several adapters in one pass, each with its own adapter's tensors.

A model of its own shares the base's weights. Whenever sequences join or leave, its LoRA and streams
become stacks of those of the sequences, (sequences, ..) instead of (..), and mlx multiplies each
sequence's rows by its own: zeros without LoRA, and without streams those of another, which it never
sees. Each sequence is barred from the tokens that its adapter does not draft.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

from ..errors import VOCABULARY
from ..models.shared_copy import shared_copy
from ..models.streams import Streams
from ..stream_config import StreamConfig
from .borrowed_model import BorrowedModel
from .compiled import CompiledSteps

_LORA = ("lora_a", "lora_b")

_OWN = frozenset(
    "mode prompt_template base_model pruner_rank stream_init_rank stream_adapter_rank "
    "stream_head_rank".split()
)
"""Fields of ``StreamConfig`` in which adapters of one pass may differ."""


@dataclass(frozen=True, eq=False)
class Layout:
    """What must be equal in adapters whose sequences share a pass; ranks may differ."""

    weights: tuple[mx.array, ...]  # the base's arrays
    scales: dict[str, float]  # which linear modules have LoRA, and of what scale
    streams: dict[str, Any]  # the streams' configuration but for ``_OWN``
    # The model, if it has LoRA that is not gathered: of experts, embeddings.
    alone: nn.Module | None

    def fits(self, other: "Layout") -> bool:
        """Check if both can share a pass; LoRA or streams may be missing in one of them."""
        pairs = (self.scales, other.scales), (self.streams, other.streams)
        if any(ours and theirs and ours != theirs for ours, theirs in pairs):
            return False
        if self.alone is not other.alone or len(self.weights) != len(other.weights):
            return False
        return all(ours is its for ours, its in zip(self.weights, other.weights, strict=True))


def layout_of(model: nn.Module, streams: Streams | None) -> Layout:
    fields = {} if streams is None else asdict(streams.config)
    fields = {name: value for name, value in fields.items() if name not in _OWN}
    modules, parameters = _lora_modules(model), _parameters(model)
    scales = {name: module.scale for name, module in modules}
    # DoRA's magnitudes are weights here.
    weights = tuple(array for name, array in parameters.items() if not name.endswith(_LORA))
    others = sum(name.endswith(_LORA) for name in parameters) - 2 * len(modules)
    return Layout(weights, scales, fields, model if others else None)


@dataclass(frozen=True, eq=False)
class MountedAdapter:
    """A model with an adapter, its streams if it has any, and what runs both."""

    model: nn.Module
    streams: Streams | None
    borrowed: BorrowedModel
    compiled: CompiledSteps | None = None  # its traces, if its steps are compiled

    @property
    def is_shared(self) -> bool:
        return self.streams is not None and self.streams.config.mode == "shared"

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.model, self.streams)

    @cached_property
    def lora(self) -> dict[str, mx.array]:
        """The LoRA tensors by name, as (in, r) and (r, out)."""
        modules = _lora_modules(self.model)
        return {f"{name}.{part}": module[part] for name, module in modules for part in _LORA}

    @cached_property
    def stream_tensors(self) -> dict[str, mx.array]:
        return {} if self.streams is None else _parameters(self.streams)


class Gathered:
    """A model whose LoRA and streams are, for each sequence, those of its own adapter."""

    def __init__(self, adapters: Sequence[MountedAdapter]):
        first = max(adapters, key=lambda adapter: len(adapter.lora))
        # Streams may be without tensors, so that the number of these tells nothing.
        each = [adapter for adapter in adapters if adapter.streams is not None]
        most = max(each, key=lambda adapter: len(adapter.stream_tensors), default=None)
        streams = most.streams if most else None
        self._names = _names_of(adapters)
        self._layouts = {adapter.layout for adapter in adapters}
        self._model = shared_copy(first.model)
        self.streams = None if streams is None else _GatheredStreams(streams.config)
        boundaries = first.borrowed.boundaries
        self.borrowed = BorrowedModel(self._model, self.streams, boundaries=boundaries)
        self.compiled: CompiledSteps | None = None
        if (its := first.compiled) is not None:
            self.compiled = CompiledSteps(self._model, self.streams, its.traced_at)

    def takes(self, adapters: Sequence[MountedAdapter]) -> bool:
        """Check if adapters fit those that it was made for, and have the same tensors."""
        pairs = product((adapter.layout for adapter in adapters), self._layouts)
        return _names_of(adapters) == self._names and all(a.fits(b) for a, b in pairs)

    def gather(self, adapters: Sequence[MountedAdapter]) -> None:
        if self.compiled is not None:
            self.compiled.forget()
        self._model.load_weights(_stacked([adapter.lora for adapter in adapters]), strict=False)
        if self.streams is not None:
            each = [adapter.stream_tensors for adapter in adapters]
            usual = max(each, key=len)
            self.streams.gather([dict(tensors or usual) for tensors in each])
            self.borrowed.release_vocabulary()


class _GatheredStreams(Streams):
    """``Streams`` whose tensors are each sequence's own."""

    def __init__(self, config: StreamConfig):
        super().__init__(config)
        self._drafted = np.empty(0, np.int32)

    def gather(self, tensors: Sequence[dict[str, mx.array]]) -> None:
        vocabularies = [np.array(t.pop(VOCABULARY)) for t in tensors if VOCABULARY in t]
        self.load_weights(_stacked(tensors), strict=False)
        if not vocabularies:
            return
        together = np.union1d(self._drafted, np.concatenate(vocabularies)).astype(np.int32)
        if together.size > self._drafted.size:
            self._drafted = together
            self.streams["vocabulary"] = mx.array(together)
        barred = np.full((len(vocabularies), self._drafted.size), -np.inf, np.float32)
        for row, tokens in zip(barred, vocabularies, strict=True):
            row[np.searchsorted(self._drafted, tokens)] = 0
        self._barred = mx.array(barred)

    def _embeddings(self, count: int) -> mx.array:
        return self.streams["embeddings"][:, None, :count]


def _parameters(module: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def _lora_modules(model: nn.Module) -> list[tuple[str, LoRALinear]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, LoRALinear)]


def _names_of(adapters: Sequence[MountedAdapter]) -> set[str]:
    names = {name for each in adapters for name in (*each.lora, *each.stream_tensors)}
    return names | {"streams" for adapter in adapters if adapter.streams is not None}


def _stacked(each: Sequence[dict[str, mx.array]]) -> list[tuple[str, mx.array]]:
    """(sequences, ..) tensors by name; those of a smaller rank are padded with zeros."""
    stacked = []
    for name in dict.fromkeys(name for tensors in each for name in tensors):
        present = [tensors[name] for tensors in each if name in tensors]
        shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in present), strict=True)]
        none = mx.zeros(shape, present[0].dtype)
        padded = []
        for tensor in (tensors.get(name, none) for tensors in each):
            missing = [(0, most - size) for most, size in zip(shape, tensor.shape, strict=True)]
            padded.append(mx.pad(tensor, missing) if any(n for _, n in missing) else tensor)
        stacked.append((name, mx.stack(padded)))
    return stacked
