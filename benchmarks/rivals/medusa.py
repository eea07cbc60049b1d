"""Medusa (arXiv 2401.10774): heads beside the LM head, each for one of the tokens after the next.

Head i, from 0 on, predicts the token i + 1 places after the next one from the last hidden state
alone, H, after the final norm: ``z = H``, ``z += silu(W z + b)`` for each of its layers, then an LM
head of its own, or the target's. The layouts are those of FasterDecoding/Medusa, of the heads alone
or within a whole model.
"""

import re
from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from specstream_mlx import UserError
from specstream_mlx.engine.borrowed_model import NO_NORM, BorrowedModel
from specstream_mlx.engine.draft_head import AcceptedRows, HeadConfig, Rank

from .head_parts import Head, ResidualHeads, Tensors, WithoutRows

LAYER = re.compile(r"^(\d+)\.(\d+)\.(linear\.(?:weight|bias))$")
_LM_HEAD = re.compile(r"^(\d+)\.\d+\.weight$")


class MedusaOfText(WithoutRows):
    def __init__(self, head: Head, model: BorrowedModel):
        self._head, self._shared = head, partial(model.head, norm=NO_NORM)
        self._hidden: mx.array

    def follow(self, rows: AcceptedRows) -> None:
        [hidden] = rows.features
        self._hidden = mx.take(hidden, (rows.count - 1)[None], axis=0)

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, None]:
        heads = range(len(expansion) + 1)
        logits = [self._head.weights.logits(i, self._hidden, self._shared) for i in heads]
        return *rank(mx.concatenate(logits), None, None), None


def read_medusa(tensors: Tensors) -> Head:
    """Make Medusa heads of their tensors."""
    named = {}
    for name, array in tensors.arrays.items():
        if layer := LAYER.match(name):
            named[f"heads.{layer[1]}.{layer[2]}.{layer[3]}"] = array
        elif lm_head := _LM_HEAD.match(name):
            named[f"lm_heads.{lm_head[1]}.weight"] = array
        else:
            raise UserError(f"{tensors.directory} has the tensor {name}, expected none")
    hidden = tensors.hidden_size
    network = ResidualHeads(named, lambda _: hidden, hidden)
    parameters = tensors.load(network, named)
    config = HeadConfig("medusa", len(network.heads), "plain", parameters=parameters)
    return Head(config, network, MedusaOfText)
