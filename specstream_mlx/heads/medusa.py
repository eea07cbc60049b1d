"""Medusa (arXiv 2401.10774): heads beside the LM head, each for one of the tokens after the next.

Head i, from 0 on, predicts the token i + 1 places behind the next one from the last hidden state
alone, H, behind the final norm: ``z = H``, ``z += silu(W z + b)`` for each of its layers, then an
LM head of its own, or the target's, which the authors' first trainer shared. The layouts are those
of FasterDecoding/Medusa (``medusa_model.py``, ``medusa_model_legacy.py``) and of vLLM
(``medusa.py``), whose heads may score some tokens only (``token_map``); here a shared one may too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count as numbers

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..config import UserError
from ..engine.borrowed_model import FINAL, BorrowedModel
from ..engine.draft_head import AcceptedRows, DraftHead, HeadConfig, Rank, WithoutRows
from .tensors import Tensors, take_token_map

KIND = "medusa"

_LAYOUTS = (
    # Medusa's own, of the heads alone and within a whole model; then vLLM's.
    ("{i}.{j}.linear.", "{i}.{layers}.weight"),
    ("medusa_head.{i}.{j}.linear.", "medusa_head.{i}.{layers}.weight"),
    ("blocks.{i}.layers.{j}.", "lm_heads.{i}.weight"),
    ("medusa_heads.blocks.{i}.layers.{j}.", "medusa_heads.lm_heads.{i}.weight"),
)
"""Names of a layer's weight and bias, without these words, and of a head's own LM head."""

_TOKEN_MAPS = ("token_map", "medusa_heads.token_map")


@dataclass(frozen=True, eq=False)
class Medusa:
    """The weights of Medusa heads; a ``MountedHead``.

    Attributes:
        config: what drafting knows of them.
        layers: for each layer, weights (heads, h, h) and biases (heads, 1, h).
        lm_heads: (n, h) for each head, its own LM head; empty: they share the target's.
        tokens: (n,) tokens that are scored; ``None``: all.
        boundaries: see ``MountedHead``.
    """

    config: HeadConfig
    layers: Sequence[tuple[mx.array, mx.array]]
    lm_heads: Sequence[mx.array]
    tokens: mx.array | None = None
    boundaries: tuple[int, ...] = (FINAL,)

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text; see ``MountedHead``."""
        return _MedusaOfText(self, model)

    def features(self, hidden: mx.array, count: int) -> mx.array:
        """Compute what the LM heads of the first ``count`` heads read.

        Args:
            hidden: (h,) the target's last hidden state behind the final norm.
            count: number of heads.

        Returns:
            (count, h)
        """
        z = mx.broadcast_to(hidden, (count, 1, len(hidden)))
        for weight, bias in self.layers:
            z = z + nn.silu(z @ weight[:count].swapaxes(1, 2) + bias[:count])
        return z[:, 0]


class _MedusaOfText(WithoutRows):
    def __init__(self, heads: Medusa, model: BorrowedModel):
        self._heads, self._shared_head = heads, model.bare_head_of(heads.tokens)
        self._hidden: mx.array

    def follow(self, rows: AcceptedRows) -> None:
        [hidden] = rows.features
        self._hidden = hidden[rows.count - 1]

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, None]:
        features = self._heads.features(self._hidden, len(expansion) + 1)
        if self._heads.lm_heads:
            pairs = zip(mx.split(features, len(features)), self._heads.lm_heads, strict=False)
            logits = mx.concatenate([one @ weight.T for one, weight in pairs])
        else:
            logits = self._shared_head(features[None])[0]
        return *rank(logits, self._heads.tokens, None), None


def is_medusa(tensors: Tensors) -> bool:
    """Whether the tensors are those of Medusa heads."""
    return _layout(tensors) is not None


def read_medusa(tensors: Tensors) -> Medusa:
    """Make Medusa heads of their tensors, whose names and shapes say all that there is to know.

    Raises:
        UserError: they do not fit together, or do not fit the target.
    """
    layer, lm_head = _layout(tensors) or _LAYOUTS[0]
    hidden, vocab = tensors.target.hidden_size, tensors.target.vocab_size
    count = _count(lambda i: f"{layer.format(i=i, j=0)}weight" in tensors)
    depth = _count(lambda j: f"{layer.format(i=0, j=j)}weight" in tensors)
    layers = []
    for j in range(depth):
        names = [layer.format(i=i, j=j) for i in range(count)]
        weights = [tensors.take(f"{name}weight", hidden, hidden) for name in names]
        biases = [tensors.take_if_any(f"{name}bias", hidden) for name in names]
        zero = mx.zeros(hidden, tensors.target.dtype)  # vLLM's medusa_fc_bias: false
        filled = [zero if bias is None else bias for bias in biases]
        layers.append((mx.stack(weights), mx.stack(filled)[:, None]))
    tokens = take_token_map(tensors, *_TOKEN_MAPS)
    names = [lm_head.format(i=i, layers=depth) for i in range(count)]
    own = [name for name in names if name in tensors]
    if own and len(own) < count:
        missing = next(name for name in names if name not in own)
        raise UserError(f"{tensors.path} has {own[0]} and no {missing}, expected both or neither")
    lm_heads = [_own_head(tensors, name, vocab, hidden, tokens) for name in own]
    tensors.check_all_taken(KIND)
    arrays = [array for pair in layers for array in pair] + lm_heads
    config = HeadConfig(
        KIND,
        count,
        "plain",
        draft_vocabulary=0 if tokens is None else tokens.size,
        parameters=sum(array.size for array in arrays),
    )
    mx.eval(arrays)
    return Medusa(config, layers, lm_heads, tokens)


def _layout(tensors: Tensors) -> tuple[str, str] | None:
    """Find the layout of the tensors' names."""
    return next((pair for pair in _LAYOUTS if f"{pair[0].format(i=0, j=0)}weight" in tensors), None)


def _count(is_there: Callable[[int], bool]) -> int:
    """Count the numbers from 0 on for which there is something."""
    return next(number for number in numbers() if not is_there(number))


def _own_head(
    tensors: Tensors, name: str, vocab: int, hidden: int, tokens: mx.array | None
) -> mx.array:
    """Take an LM head; vLLM cuts one of the whole vocabulary to the tokens that are drafted."""
    if tokens is None:
        return tensors.take(name, vocab, hidden)
    if tensors.matrix_shape(name)[0] == vocab:
        return tensors.take(name, vocab, hidden)[tokens]
    return tensors.take(name, tokens.size, hidden)
