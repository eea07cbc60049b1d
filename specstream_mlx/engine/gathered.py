"""Texts of several adapters in one pass: each sequence meets its own adapter's tensors.

A model of its own shares the base's weights. Whenever texts join or leave, the LoRA and the streams
in it become stacks of those of the sequences, (sequences, ..) instead of (..), and mlx multiplies
each sequence's rows by its own. Each adapter may draft other tokens: the head's rows are those of
all adapters together, and each sequence is barred from the tokens that its adapter has not.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

from ..config import VOCABULARY
from ..models.streams import Streams
from ..stream_config import StreamConfig
from .borrowed_model import BorrowedModel

_LORA = ("lora_a", "lora_b")


@dataclass(frozen=True, eq=False)
class Mounted:
    """A model with an adapter.

    Attributes:
        model: an mlx-lm model, its LoRA included.
        streams: of the adapter, or ``None``.
        borrowed: runs both.
    """

    model: nn.Module
    streams: Streams | None
    borrowed: BorrowedModel

    def is_same(self, other: "Mounted") -> bool:
        """Whether the other one is of the same model and streams."""
        return self.model is other.model and self.streams is other.streams


@dataclass(frozen=True, eq=False)
class Layout:
    """What is the same for adapters whose texts can go through one pass; ranks may differ.

    Attributes:
        weights: the base's arrays.
        scales: which linear modules have LoRA, and of what scale.
        config: the streams' configuration but for what they read; ``None``: there are none.
        alone: the model, if it has LoRA that is not gathered: of experts or embeddings.
    """

    weights: tuple[mx.array, ...]
    scales: tuple[tuple[str, float], ...]
    config: StreamConfig | None
    alone: nn.Module | None

    def is_same(self, other: "Layout") -> bool:
        """Whether texts of both can go through one pass."""
        if (self.scales, self.config) != (other.scales, other.config):
            return False
        if self.alone is not other.alone or len(self.weights) != len(other.weights):
            return False
        return all(one is own for one, own in zip(self.weights, other.weights, strict=True))


def layout_of(model: nn.Module, streams: Streams | None) -> Layout:
    """Read the layout of a model's adapter."""
    config = None if streams is None else replace(streams.config, prompt_template=None)
    modules, parameters = _lora_modules(model), _parameters(model)
    scales = tuple((name, module.scale) for name, module in modules)
    # DoRA's magnitudes are weights here.
    weights = tuple(one for name, one in parameters.items() if not name.endswith(_LORA))
    others = sum(name.endswith(_LORA) for name in parameters) - 2 * len(modules)
    return Layout(weights, scales, config, model if others else None)


def with_same_weights(model: nn.Module) -> nn.Module:
    """A model of modules of its own, on which LoRA can be mounted, with the same arrays."""
    made: dict[int, Any] = {}

    def twin(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(twin, value))
        if type(value) is dict:
            return {name: twin(item) for name, item in value.items()}
        if not isinstance(value, nn.Module):
            return value
        if id(value) not in made:
            made[id(value)] = module = copy(value)
            for name, item in value.items():
                module[name] = twin(item)
        return made[id(value)]

    return twin(model)


class Gathered:
    """A model whose LoRA and streams are, for each sequence, those of its own adapter.

    Args:
        first: one of the adapters; see ``Layout``.
    """

    def __init__(self, first: Mounted):
        self._model = with_same_weights(first.model)
        self.streams = None if first.streams is None else _GatheredStreams(first.streams.config)
        boundaries = first.borrowed.boundaries
        self.borrowed = BorrowedModel(self._model, self.streams, boundaries=boundaries)

    def gather(self, adapters: Sequence[Mounted]) -> None:
        """Take the tensors of the sequences' adapters, one for each sequence."""
        self._model.load_weights(_stacked([_lora_of(one.model) for one in adapters]), strict=False)
        if self.streams is not None:
            self.streams.gather([one.streams for one in adapters if one.streams is not None])
            self.borrowed.read_vocabulary()


class _GatheredStreams(Streams):
    """``Streams`` whose tensors are each sequence's own.

    Their vocabulary is that of all adapters that have been gathered, so that the head's rows are
    not copied again when one leaves.
    """

    def __init__(self, config: StreamConfig):
        super().__init__(config)
        self._drafted = np.empty(0, np.int32)
        self._barred: mx.array | None = None

    @property
    def barred(self) -> mx.array | None:
        return self._barred

    def gather(self, each: Sequence[Streams]) -> None:
        """Take the tensors of each sequence's streams."""
        tensors = [_parameters(one) for one in each]
        own = [np.array(one.pop(VOCABULARY)) for one in tensors if VOCABULARY in one]
        self.load_weights(_stacked(tensors), strict=False)
        if not own:
            return
        together = np.union1d(self._drafted, np.concatenate(own)).astype(np.int32)
        if together.size > self._drafted.size:
            self._drafted = together
            self.streams["vocabulary"] = mx.array(together)
        barred = np.full((len(own), self._drafted.size), -np.inf, np.float32)
        for row, tokens in zip(barred, own, strict=True):
            row[np.searchsorted(self._drafted, tokens)] = 0
        self._barred = mx.array(barred)

    def _embeddings(self, count: int) -> mx.array:
        return self.streams["embeddings"][:, None, :count]


def _parameters(module: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def _lora_modules(model: nn.Module) -> list[tuple[str, LoRALinear]]:
    return [(name, one) for name, one in model.named_modules() if isinstance(one, LoRALinear)]


def _lora_of(model: nn.Module) -> dict[str, mx.array]:
    """The LoRA tensors of a model by name, as (in, r) and (r, out)."""
    return {
        f"{name}.{part}": module[part] for name, module in _lora_modules(model) for part in _LORA
    }


def _stacked(each: Sequence[dict[str, mx.array]]) -> list[tuple[str, mx.array]]:
    """(sequences, ..) tensors by name; those of a smaller rank are filled up with zeros."""
    stacked = []
    for name in each[0]:
        tensors = [own[name] for own in each]
        if name.endswith(_LORA):
            axis = -1 if name.endswith("lora_a") else 0
            rank = max(tensor.shape[axis] for tensor in tensors)
            tensors = [_filled(tensor, axis, rank) for tensor in tensors]
        stacked.append((name, mx.stack(tensors)))
    return stacked


def _filled(tensor: mx.array, axis: int, rank: int) -> mx.array:
    missing = rank - tensor.shape[axis]
    if not missing:
        return tensor
    return mx.pad(tensor, [(0, 0), (0, missing)] if axis else [(0, missing), (0, 0)])
