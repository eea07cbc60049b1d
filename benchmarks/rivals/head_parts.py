"""What Medusa, Hydra, EAGLE and prompt tokens have in common: tensors, layers, what is mounted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specstream_mlx import SpeculativeModel, UserError
from specstream_mlx.adapters.lora import activations_dtype
from specstream_mlx.engine.borrowed_model import FINAL, BorrowedModel
from specstream_mlx.engine.draft_head import DraftHead, HeadConfig
from specstream_mlx.heads.read_head import load_weights


@dataclass(frozen=True)
class Tensors:
    """The tensors of a head by name, its configuration (empty: none), and the target."""

    directory: Path  # of the head, for errors
    arrays: Mapping[str, mx.array]
    values: Mapping[str, Any]
    target: SpeculativeModel

    @property
    def hidden_size(self) -> int:
        return self.target.config["hidden_size"]

    def load(self, network: nn.Module, named: Mapping[str, mx.array]) -> int:
        """Give a network its weights, all of them and no others; returns their number."""
        return load_weights(self.directory, network, named, activations_dtype(self.target.model))

    def check_values(self, known: Mapping[str, tuple[Any, ...]]) -> None:
        """Check that settings, where they are there, have one of the known values."""
        for name, values in known.items():
            if (value := self.values.get(name, values[0])) not in values:
                raise UserError(
                    f"{self.directory}: {name} is {value!r}, expected one of {list(values)}"
                )


class ResidualLayer(nn.Module):
    """``R x + silu(L x)``; R is the identity where widths do not differ."""

    def __init__(self, width: int, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(width, hidden_size)
        if width != hidden_size:
            self.res_connection = nn.Linear(width, hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        through = self.res_connection(x) if "res_connection" in self else x
        return through + nn.silu(self.linear(x))


class ResidualHeads(nn.Module):
    """Heads of residual layers and, unless they share the target's, an LM head each."""

    def __init__(
        self, named: Mapping[str, mx.array], width: Callable[[int], int], hidden_size: int
    ):
        super().__init__()
        layers = {tuple(map(int, n.split(".")[1:3])) for n in named if n.startswith("heads.")}
        lm_heads = {name: array for name, array in named.items() if name.startswith("lm_heads.")}
        count = 1 + max(head for head, _ in layers)
        self.heads = [
            [
                ResidualLayer(hidden_size if layer else width(head), hidden_size)
                for layer in range(max(1, sum(other == head for other, _ in layers)))
            ]
            for head in range(count)
        ]
        self.lm_heads = []
        if lm_heads:
            bias = any(name.endswith("bias") for name in lm_heads)
            rows = len(next(iter(lm_heads.values())))
            self.lm_heads = [nn.Linear(hidden_size, rows, bias=bias) for _ in range(count)]

    def logits(
        self, number: int, read: mx.array, shared: Callable[[mx.array], mx.array]
    ) -> mx.array:
        """Score tokens (rows, n) by one head from what it reads (rows, width)."""
        for layer in self.heads[number]:
            read = layer(read)
        return self.lm_heads[number](read) if self.lm_heads else shared(read[None])[0]


@dataclass(frozen=True, eq=False)
class Head:
    """A head's weights, a ``MountedHead``; ``of_text`` makes the ``DraftHead`` of a text."""

    config: HeadConfig  # what drafting knows of it
    weights: Any  # its modules or arrays
    of_text: Callable[["Head", BorrowedModel], DraftHead]
    boundaries: tuple[int, ...] = (FINAL,)  # hidden states that it reads

    def begin(self, model: BorrowedModel) -> DraftHead:
        return self.of_text(self, model)


class WithoutRows:
    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None: ...

    def commit(self, count: int) -> None: ...

    def trim(self, count: int) -> None: ...
