"""EAGLE and EAGLE-2 (arXiv 2401.15077, 2406.16858): a layer that drafts the target's features.

The features are the last hidden states H after the final norm. Of a row's token x and feature f,
``a = fc [E(x); f]``, ``y = a + Attn(a)`` without a norm before, ``f' = y + MLP(n(y))`` with an RMS
norm n; f' stands for the next H, so the target's LM head reads it without a norm. EAGLE-2 has the
same weights and grows its tree by the drafts' probabilities, as all trees here. The layout is that
of SafeAILab/EAGLE (``cnets1.py``).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.llama import ModelArgs

from specstream_mlx import UserError
from specstream_mlx.engine.borrowed_model import FINAL, NO_NORM, BorrowedModel
from specstream_mlx.engine.draft_head import DraftHead, HeadConfig
from specstream_mlx.engine.kv import UncommittedRows
from specstream_mlx.heads.eagle3 import DEPTH, Layer, within
from specstream_mlx.heads.read_head import llama_args
from specstream_mlx.heads.recurrence import RecurrentHead

from .head_parts import Tensors

_UNUSED = "embed_tokens.weight", "layers.0.self_attn.rotary_emb.inv_freq"


class _Network(nn.Module):
    def __init__(self, args: ModelArgs, names: Collection[str]):
        super().__init__()
        self.fc = nn.Linear(2 * args.hidden_size, args.hidden_size, bias="fc.bias" in names)
        self.layers = [Layer(args, args.hidden_size, within("layers.0.", names))]


@dataclass(frozen=True, eq=False)
class Eagle:
    """The weights of an EAGLE head: a ``MountedHead`` and its ``Recurrence``."""

    config: HeadConfig
    network: _Network
    tokens: mx.array | None = None  # all are drafted
    boundaries: tuple[int, ...] = (FINAL,)

    def begin(self, model: BorrowedModel) -> DraftHead:
        return RecurrentHead(self, model)

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        return features[0]

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        return model.embed(tokens)

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        a = self.network.fc(mx.concatenate([embeddings, features], axis=1))
        return self.network.layers[0].after(a, a, rows)

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        return lambda output: model.head(output[None], NO_NORM)[0]


def read_eagle(tensors: Tensors) -> Eagle:
    """Make an EAGLE head of its tensors and its configuration, which has the layer's sizes."""
    named = {name: array for name, array in tensors.arrays.items() if name not in _UNUSED}
    args = llama_args(tensors.directory, tensors.values)
    if args.hidden_size != tensors.hidden_size:
        raise UserError(
            f"{tensors.directory}: hidden_size is {args.hidden_size}, expected the model's "
            f"{tensors.hidden_size}"
        )
    network = _Network(args, named)
    parameters = tensors.load(network, named)
    config = HeadConfig("eagle", DEPTH, "conditioned", parameters=parameters, own_rows=True)
    return Eagle(config, network)
