"""EAGLE-3 (arXiv 2503.01840): a layer that drafts tokens, from hidden states of several depths.

A row's feature g is ``fc`` of the target's hidden states at some boundaries, side by side, or for a
drafted row the layer's own output. With a token's embedding E(x), ``u = [n_e(E(x)); n_g(g)]``,
``y = g + Attn(u)``, ``o = y + MLP(n(y))``; the logits are ``lm_head(n'(o))``, with an LM head of
the head's own, often over some tokens only: ``d2t`` has the distance of each to its id in the
target's vocabulary. The next g is o. Layouts: SafeAILab/EAGLE (``cnets.py``) and ``speculators``
(``models/eagle3``), with its options ``norm_before_residual`` (n_g(g) in place of g in y),
``norm_before_fc``, ``fc_norm`` and ``norm_output`` (the next g is n'(o)), and Qwen3's norms of
queries and keys.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3
from mlx_lm.models.llama import MLP, Attention, ModelArgs

from ..engine.borrowed_model import BorrowedModel, PositionedRope
from ..engine.draft_head import DraftHead, HeadConfig
from ..engine.kv import UncommittedRows
from .recurrence import RecurrentHead

DEPTH = 6
"""Levels that are drafted: EAGLE-2's published depth. The layer itself has no limit."""


class Layer(nn.Module):
    """The parts of a Llama layer that EAGLE's layers have; its rows x are ``width`` wide.

    ``names`` of its tensors say which linear layers have biases, and whether queries and keys are
    normed.
    """

    def __init__(self, args: ModelArgs, width: int, names: Collection[str]):
        super().__init__()
        family: Any = Attention
        if "self_attn.q_norm.weight" in names:
            family = qwen3.Attention
        self.self_attn = attention = family(args)
        self.mlp = MLP(args)
        for part in ("self_attn", "mlp"):
            for name, linear in list(self[part].items()):
                if isinstance(linear, nn.Linear):
                    rows, columns = linear.weight.shape
                    if name in ("q_proj", "k_proj", "v_proj"):
                        columns = width
                    bias = f"{part}.{name}.bias" in names
                    self[part][name] = nn.Linear(columns, rows, bias=bias)
        attention["rope"] = PositionedRope(attention["rope"])
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def after(self, x: mx.array, residual: mx.array, rows: UncommittedRows) -> mx.array:
        """Compute ``y + MLP(n(y))`` of ``y = residual + Attn(x)``, x (rows, width)."""
        mask: Any = rows.make_mask(len(x))  # mlx-lm's attention takes "causal" too
        y = residual + self.self_attn(x[None], mask, rows)[0]
        return y + self.mlp(self.post_attention_layernorm(y))


def within(prefix: str, names: Collection[str]) -> set[str]:
    """The names that begin with a prefix, without it."""
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


class Eagle3Network(nn.Module):
    """All modules of a head; the names of its tensors determine which there are."""

    def __init__(
        self, args: ModelArgs, width: int, count: int, names: Collection[str], *vocab: int
    ):
        super().__init__()
        hidden, epsilon = args.hidden_size, args.rms_norm_eps
        self.midlayer = Layer(args, 2 * hidden, within("midlayer.", names))
        self.midlayer.input_layernorm = nn.RMSNorm(hidden, eps=epsilon)
        self.midlayer.hidden_norm = nn.RMSNorm(hidden, eps=epsilon)
        self.fc = nn.Linear(width, hidden, bias="fc.bias" in names)
        self.norm = nn.RMSNorm(hidden, eps=epsilon)
        self.lm_head = nn.Linear(hidden, vocab[0], bias=False)
        if "input_norm.weight" in names:
            self.input_norm = nn.RMSNorm(width, eps=epsilon)
        if "fc_norm.0.weight" in names:
            self.fc_norm = [nn.RMSNorm(width // count, eps=epsilon) for _ in range(count)]
        if "embed_tokens.weight" in names:
            self.embed_tokens = nn.Embedding(vocab[1], hidden)


@dataclass(frozen=True, eq=False)
class Eagle3:
    """The weights of an EAGLE-3 head, which implement ``MountedHead`` and ``Recurrence``."""

    config: HeadConfig
    boundaries: tuple[int, ...]
    network: Eagle3Network
    tokens: mx.array | None
    norm_before_residual: bool
    norm_output: bool

    def begin(self, model: BorrowedModel) -> DraftHead:
        return RecurrentHead(self, model)

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        if "fc_norm" in self.network:
            pairs = zip(self.network.fc_norm, features, strict=True)
            features = tuple(norm(rows) for norm, rows in pairs)
        joined = mx.concatenate(list(features), axis=1)
        if "input_norm" in self.network:
            joined = self.network.input_norm(joined)
        return self.network.fc(joined)

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        has_embedding = "embed_tokens" in self.network
        return self.network.embed_tokens(tokens) if has_embedding else model.embed(tokens)

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        layer = self.network.midlayer
        normed = layer.hidden_norm(features)
        x = mx.concatenate([layer.input_layernorm(embeddings), normed], axis=1)
        output = layer.after(x, normed if self.norm_before_residual else features, rows)
        return self.network.norm(output) if self.norm_output else output

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        network = self.network
        if self.norm_output:
            return network.lm_head
        return lambda output: network.lm_head(network.norm(output))
