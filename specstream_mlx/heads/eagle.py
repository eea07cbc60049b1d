"""EAGLE and EAGLE-2 (arXiv 2401.15077, 2406.16858): a layer that drafts the target's features.

The features are the last hidden states H behind the final norm. Of a row's token x and feature f,
``a = fc [E(x); f]``, ``y = a + Attn(a)`` without a norm before, ``f' = y + MLP(n(y))`` with an RMS
norm n; f' stands for the next H, so the target's LM head reads it without a norm. EAGLE-2 has the
same weights and grows its tree by the drafts' probabilities, as all trees here. The layout is that
of SafeAILab/EAGLE (``cnets1.py``), also with vLLM's wrapping of the configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.llama import MLP, Attention, ModelArgs

from ..engine.borrowed_model import FINAL, BorrowedModel
from ..engine.draft_head import DraftHead, HeadConfig
from ..engine.kv import UncommittedRows
from .own_rows import RowsRope, llama_args
from .recurrent import DEPTH, RecurrentHead
from .tensors import Tensors, evaluated, take_token_map

KIND = "eagle"

_LAYER = "layers.0."
_UNUSED = ("embed_tokens.weight", f"{_LAYER}self_attn.rotary_emb.inv_freq")


class Layer(nn.Module):
    """The parts of a Llama layer that EAGLE's layers have.

    Args:
        args: sizes and rope.
        width: of the rows that queries, keys and values are made of.
    """

    def __init__(self, args: ModelArgs, width: int):
        super().__init__()
        self.self_attn = attention = Attention(args)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows, _ = attention[name].weight.shape
            attention[name] = nn.Linear(width, rows, bias=args.attention_bias)
        attention["rope"] = RowsRope(attention["rope"])
        self.mlp = MLP(args)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def behind(self, x: mx.array, residual: mx.array, rows: UncommittedRows) -> mx.array:
        """Compute ``y = residual + Attn(x)`` and ``y + MLP(n(y))``.

        Args:
            x: (rows, width) what queries, keys and values are made of.
            residual: (rows, h).
            rows: the stand-in for the KV cache.
        """
        mask: Any = rows.make_mask(len(x))  # mlx-lm's attention takes "causal" too
        y = residual + self.self_attn(x[None], mask, rows)[0]
        return y + self.mlp(self.post_attention_layernorm(y))


class _Network(nn.Module):
    def __init__(self, args: ModelArgs, bias: bool):
        super().__init__()
        self.fc = nn.Linear(2 * args.hidden_size, args.hidden_size, bias=bias)
        self.layers = [Layer(args, args.hidden_size)]


@dataclass(frozen=True, eq=False)
class Eagle:
    """The weights of an EAGLE head: a ``MountedHead`` and its ``Recurrence``.

    Attributes:
        config: what drafting knows of it.
        network: ``fc`` and the layer.
        tokens: see ``Recurrence``.
        boundaries: see ``MountedHead``.
    """

    config: HeadConfig
    network: _Network
    tokens: mx.array | None = None
    boundaries: tuple[int, ...] = (FINAL,)

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text; see ``MountedHead``."""
        return RecurrentHead(self, model)

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        """Return the target's last hidden states; see ``Recurrence``."""
        return features[0]

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        """Return the target's embeddings; see ``Recurrence``."""
        return model.embed(tokens)

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        """Run ``fc`` and the layer; see ``Recurrence``."""
        a = self.network.fc(mx.concatenate([embeddings, features], axis=1))
        return self.network.layers[0].behind(a, a, rows)

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        """Return the target's LM head; see ``Recurrence``."""
        shared_head = model.bare_head_of(self.tokens)
        return lambda output: shared_head(output[None])[0]


def is_eagle(tensors: Tensors) -> bool:
    """Whether the tensors are those of an EAGLE or EAGLE-2 head."""
    return (
        "fc.weight" in tensors
        and f"{_LAYER}self_attn.q_proj.weight" in tensors
        and f"{_LAYER}hidden_norm.weight" not in tensors
    )


def read_eagle(tensors: Tensors) -> Eagle:
    """Make an EAGLE head of its tensors and its configuration, which has the layer's sizes.

    Raises:
        UserError: they do not fit together, or do not fit the target.
    """
    hidden = tensors.target.hidden_size
    args = layer_args(tensors, tensors.values.get("model", tensors.values), _LAYER)
    tensors.check_value("hidden_size", args.hidden_size, hidden)
    for name in _UNUSED:
        tensors.drop(name)
    tokens = take_token_map(tensors)
    network = _Network(args, "fc.bias" in tensors)
    tensors.load(network, "")
    tensors.check_all_taken(KIND)
    drafted = 0 if tokens is None else tokens.size
    config = HeadConfig(KIND, DEPTH, "conditioned", drafted, evaluated([network]), own_rows=True)
    return Eagle(config, network, tokens)


def layer_args(tensors: Tensors, values: Any, layer: str) -> ModelArgs:
    """Read the sizes of a head's layer from its configuration, and from its tensors the biases.

    Args:
        tensors: the head's.
        values: the part of its ``config.json`` with the fields of a Llama.
        layer: beginning of the names of the layer's tensors.

    Raises:
        UserError: they are not those of a Llama layer.
    """
    return llama_args(
        tensors.path,
        values,
        attention_bias=f"{layer}self_attn.o_proj.bias" in tensors,
        mlp_bias=f"{layer}mlp.up_proj.bias" in tensors,
    )
