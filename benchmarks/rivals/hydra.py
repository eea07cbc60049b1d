"""Hydra (arXiv 2402.05109): heads that know the tokens of the path before them.

Head i, from 0 on, predicts the token after a path of the next token and i drafts. It reads
``u = [H; E(x); E(c_1); ..; E(c_i)]``, with H the last hidden state after the final norm and E the
target's embedding: ``z = R u + r + silu(L u + l)``, then ``z += silu(L' z + l')`` for each of its
further layers, then an LM head of its own with a bias, or the target's. The layout is that of
zankner/Hydra.
"""

import re
from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from specstream_mlx.engine.borrowed_model import NO_NORM, BorrowedModel
from specstream_mlx.engine.draft_head import AcceptedRows, HeadConfig, Rank
from specstream_mlx.engine.guess import Candidates, guess

from .head_parts import Head, ResidualHeads, Tensors, WithoutRows

_NAMES = {r"^hydra_mlp\.": "heads.", r"^hydra_lm_head\.": "lm_heads."}
_KNOWN = {"hydra_head_arch": ("mlp",), "grounded_heads": (True,), "hidden_state_offset": (0,)}


class HydraOfText(WithoutRows):
    def __init__(self, head: Head, model: BorrowedModel):
        self._head, self._model = head, model
        self._hidden: mx.array
        self._root: mx.array

    def follow(self, rows: AcceptedRows) -> None:
        [hidden] = rows.features
        self._hidden, self._root = hidden[rows.count - 1], rows.root

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        read, shared = self._hidden[None], partial(self._model.head, norm=NO_NORM)

        def of_head(number: int, before: mx.array, rows: mx.array) -> Candidates:
            nonlocal read
            read = mx.concatenate([read[rows], self._model.embed(before)], axis=1)
            return rank(self._head.weights.logits(number, read, shared), None, number)

        return guess(of_head, self._root, expansion, width)


def read_hydra(tensors: Tensors) -> Head:
    """Make Hydra heads of their tensors; others, such as Hydra++, are refused."""
    tensors.check_values(_KNOWN)
    named = dict(tensors.arrays)
    for published, ours in _NAMES.items():
        named = {re.sub(published, ours, name): array for name, array in named.items()}
    hidden = tensors.hidden_size
    network = ResidualHeads(named, lambda head: (head + 2) * hidden, hidden)
    parameters = tensors.load(network, named)
    config = HeadConfig("hydra", len(network.heads), "conditioned", parameters=parameters)
    return Head(config, network, HydraOfText)
