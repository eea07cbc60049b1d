"""A transformers language model run layer by layer: its own layers with our attention.

transformers lets a model's attention be any function of queries, keys and values. Everything
around it (projections, norms on queries and keys, rotary embeddings, the order of a block, soft
caps) is therefore transformers' own code, and what is left to know of an architecture is in the
table of ``specstream_mlx.models.architectures``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from specstream_mlx.errors import UserError
from specstream_mlx.models.architectures import ARCHITECTURES, Architecture

from .attention import Scoring, softcapped

Rope = tuple[Tensor, Tensor] | None
Attend = Callable[[Tensor, Tensor, Tensor, Scoring], Tensor]

ATTENTION = "specstream"
"""The name of our attention in transformers, whose layers then take ``attend``."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    attend: Attend,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers' modules call: ``attend``, in the values' dtype."""
    kind = value.dtype  # under autocast the rotary embedding returns float32
    scoring = Scoring(scaling, sliding_window, softcap)
    return attend(query.to(kind), key.to(kind), value, scoring), None


AttentionInterface.register(ATTENTION, _attention)


class _Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


def _cast_once(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Cast hidden states under autocast once, not once for every projection that reads them."""
    name = "hidden_states"
    x = args[0] if args else kwargs[name]
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, name: x})


class Backbone:
    """A causal language model in parts: embedding, layers, final norm and head.

    It is of a tested architecture, with LoRA or without; its attention and MLP modules get a hook
    that changes nothing outside autocast.
    """

    def __init__(self, causal_lm: PreTrainedModel) -> None:
        self.config = causal_lm.config
        self._architecture = _architecture(causal_lm)
        self._decoder = causal_lm.get_decoder()
        self.head: nn.Linear = causal_lm.get_output_embeddings()
        self.softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self.layers = list(self._decoder.layers)
        self._mlps = [[getattr(layer, n) for n in self._architecture.mlp] for layer in self.layers]
        for layer in self.layers:
            layer.self_attn.register_forward_pre_hook(_cast_once, with_kwargs=True)
            if hasattr(layer, "mlp"):
                layer.mlp.register_forward_pre_hook(_cast_once, with_kwargs=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """The first layer's input (B, T, h) for ``tokens`` (B, T), with learned positions."""
        hidden = self._decoder.embed_tokens(tokens)
        if self._architecture.positions == "learned":
            everywhere = torch.arange(tokens.shape[1], device=tokens.device)[None]
            hidden = hidden + self._decoder.embed_positions(tokens, position_ids=everywhere)
        return hidden

    def embedding(self, tokens: Tensor) -> Tensor:
        """The rows (..., h) of the table for ``tokens`` (...), as stored: Gemma's without scale."""
        return F.embedding(tokens, self._decoder.embed_tokens.weight)

    def ropes(self, hidden: Tensor, length: int) -> list[Rope]:
        """The cosines and sines (1, length, d) of each layer, or ``None`` if positions are learned.

        Of ``hidden`` device and dtype count.
        """
        if self._architecture.positions == "learned":
            return [None] * len(self.layers)
        rotary = self._decoder.rotary_emb
        positions = torch.arange(length, device=hidden.device)[None]
        kinds = getattr(self.config, "layer_types", None) or ()
        if not set(kinds) & set(self.config.rope_parameters):
            return [rotary(hidden, positions)] * len(self.layers)
        by_kind = {kind: rotary(hidden, positions, kind) for kind in set(kinds)}
        return [by_kind[kind] for kind in kinds]

    def layer(self, index: int, hidden: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Run one layer on ``hidden`` (B, rows, h) with an attention of the caller's.

        ``rope`` has cosines and sines (B or 1, rows, d) at the rows' positions; ``attend`` maps
        queries (B, Hq, rows, d), keys and values (B, Hkv, rows, d) and the layer's ``Scoring`` to
        (B, rows, Hq, d).
        """
        before = self.config._attn_implementation
        self.config._attn_implementation = ATTENTION
        try:
            return self.layers[index](
                hidden, attention_mask=None, position_embeddings=rope, attend=attend
            )
        finally:
            self.config._attn_implementation = before

    def mlp(self, index: int, x: Tensor) -> Tensor:
        """Apply a layer's own MLP to ``x`` (..., h), within ``mlp_replaced`` too."""
        for module in self._mlps[index]:
            x = module(x)
        return x

    @contextmanager
    def mlp_replaced(self, index: int, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Let a layer call ``function``, (..., h) to (..., h), instead of its MLP for a while."""
        layer, names = self.layers[index], self._architecture.mlp
        before = [getattr(layer, name) for name in names]
        try:
            for name in names[:-1]:
                setattr(layer, name, nn.Identity())
            setattr(layer, names[-1], _Function(function))
            yield
        finally:
            for name, module in zip(names, before, strict=True):
                setattr(layer, name, module)

    def norm(self, hidden: Tensor) -> Tensor:
        """Apply the final norm to (..., h), if the model has one."""
        norm = getattr(self._decoder, self._architecture.norm)
        return hidden if norm is None else norm(hidden)

    @property
    def norm_weight(self) -> Tensor:
        """The weights (h,) of the final norm."""
        return getattr(self._decoder, self._architecture.norm).weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the LM head and its soft cap, without the final norm: (..., h) to (..., V)."""
        return softcapped(self.head(hidden), self.softcap)


def _architecture(causal_lm: PreTrainedModel) -> Architecture:
    kind = causal_lm.config.model_type
    if kind not in ARCHITECTURES:
        raise UserError(f"the base is a {kind!r} model, expected one of {(*ARCHITECTURES,)}")
    return ARCHITECTURES[kind]


def linear_layers(causal_lm: PreTrainedModel) -> list[str]:
    """The names of the linear layers within a decoder layer, such as ``q_proj``."""
    _architecture(causal_lm)
    modules = causal_lm.get_decoder().layers[0].named_modules()
    return [name.rpartition(".")[2] for name, m in modules if isinstance(m, nn.Linear)]


def use_long_factors(causal_lm: PreTrainedModel) -> None:
    """Make a ``longrope`` model use its long factors for texts of any length, as mlx-lm does."""
    rotary = getattr(causal_lm.get_decoder(), "rotary_emb", None)
    if rotary is not None and getattr(rotary, "rope_type", None) == "longrope":
        length = rotary.config.rope_parameters["original_max_position_embeddings"] + 1
        rotary(torch.zeros(1), torch.arange(length)[None])  # this sets the frequencies
        rotary.rope_type = "default"  # which are left as they are from here on
