"""Medusa (arXiv 2401.10774): heads beside the LM head, each for one of the tokens after the next.

Head i, from 0 on, predicts the token i + 1 places behind the next one from the last hidden state
alone, H, behind the final norm: ``z = H``, ``z += silu(W z + b)`` for each of its layers, then an
LM head of its own, or the target's. The layouts are those of FasterDecoding/Medusa, of the heads
alone or within a whole model, and of vLLM, whose heads may score some tokens only (``token_map``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from specstream_mlx import UserError
from specstream_mlx.engine.borrowed_model import FINAL, BorrowedModel
from specstream_mlx.engine.draft_head import (
    AcceptedRows,
    DraftHead,
    HeadConfig,
    Rank,
)

from .head_tensors import Tensors

_PREFIXES = re.compile(r"^(medusa_heads?\.)?")
_LAYER = re.compile(r"^(?:blocks\.(\d+)\.layers\.(\d+)\.|(\d+)\.(\d+)\.linear\.)(weight|bias)$")
_LM_HEAD = re.compile(r"^(?:lm_heads\.(\d+)|(\d+)\.\d+)\.weight$")


@dataclass(frozen=True, eq=False)
class Medusa:
    """The weights of Medusa heads; a ``MountedHead``.

    Attributes:
        config: what drafting knows of them.
        layers: for each layer, weights (heads, h, h) and biases (heads, 1, h).
        lm_heads: (n, h) for each head, its own LM head; empty: they share the target's.
        tokens: (n,) tokens that are scored; ``None``: all.
    """

    config: HeadConfig
    layers: Sequence[tuple[mx.array, mx.array]]
    lm_heads: Sequence[mx.array]
    tokens: mx.array | None = None
    boundaries: tuple[int, ...] = (FINAL,)

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text."""
        return _MedusaOfText(self, model)


class _MedusaOfText:
    """Keeps nothing of earlier rows."""

    def __init__(self, heads: Medusa, model: BorrowedModel):
        self._heads, self._shared_head = heads, model.bare_head_of(heads.tokens)
        self._hidden: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None: ...

    def commit(self, count: int) -> None: ...

    def trim(self, count: int) -> None: ...

    def follow(self, rows: AcceptedRows) -> None:
        [hidden] = rows.features
        self._hidden = hidden[rows.count - 1]

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, None]:
        count = len(expansion) + 1
        z = mx.broadcast_to(self._hidden, (count, 1, len(self._hidden)))
        for weight, bias in self._heads.layers:
            z = z + nn.silu(z @ weight[:count].swapaxes(1, 2) + bias[:count])
        z = z[:, 0]
        if self._heads.lm_heads:
            pairs = zip(mx.split(z, count), self._heads.lm_heads, strict=False)
            logits = mx.concatenate([one @ weight.T for one, weight in pairs])
        else:
            logits = self._shared_head(z[None])[0]
        return *rank(logits, self._heads.tokens, None), None


def is_medusa(tensors: Tensors) -> bool:
    """Whether the tensors are those of Medusa heads."""
    return any(_LAYER.match(_PREFIXES.sub("", name)) for name in tensors.arrays)


def read_medusa(tensors: Tensors) -> Medusa:
    """Make Medusa heads of their tensors, whose names and shapes say all that there is to know.

    Raises:
        UserError: they do not fit together, or do not fit the target.
    """
    layers: dict[tuple[int, int, str], mx.array] = {}
    own: dict[int, mx.array] = {}
    hidden, vocab = tensors.hidden_size, tensors.vocab_size
    tokens = tensors.token_map("token_map", "medusa_heads.token_map")
    for name in list(tensors.arrays):
        short = _PREFIXES.sub("", name)
        if found := _LAYER.match(short):
            i, j = (int(one) for one in found.groups()[:4] if one is not None)
            shape = (hidden, hidden) if found[5] == "weight" else (hidden,)
            layers[i, j, found[5]] = tensors.take(name, *shape)
        elif found := _LM_HEAD.match(short):
            rows = len(tensors.arrays[name])
            cut = tokens is not None and rows == vocab  # vLLM's, of the whole vocabulary
            expected = rows if cut else vocab if tokens is None else tokens.size
            weight = tensors.take(name, expected, hidden)
            own[int(found[1] or found[2])] = weight[tokens] if cut else weight
    tensors.check_all_taken()
    count, depth = 1 + max(i for i, *_ in layers), 1 + max(j for _, j, _ in layers)
    zero = mx.zeros(hidden, tensors.dtype)  # vLLM's medusa_fc_bias: false
    try:
        stacked = [
            (
                mx.stack([layers[i, j, "weight"] for i in range(count)]),
                mx.stack([layers.get((i, j, "bias"), zero) for i in range(count)])[:, None],
            )
            for j in range(depth)
        ]
        lm_heads = [own[i] for i in range(count)] if own else []
    except KeyError as error:
        raise UserError(f"{tensors.directory} lacks a part of head {error}") from None
    arrays = [array for pair in stacked for array in pair] + lm_heads
    mx.eval(arrays)
    drafted = 0 if tokens is None else tokens.size
    size = sum(array.size for array in arrays)
    config = HeadConfig("medusa", count, "plain", draft_vocabulary=drafted, parameters=size)
    return Medusa(config, stacked, lm_heads, tokens)
