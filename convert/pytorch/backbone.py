"""A transformers language model as the reference drives it: its own layers, our attention.

transformers lets a model's attention be any function of queries, keys and values. Everything
around it (projections, norms on queries and keys, rotary embeddings, the order of a block, soft
caps) is therefore transformers' own code, and what is left to know of an architecture is in the
table of ``specstream_mlx.models.architectures``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from specstream_mlx.config import ConfigError
from specstream_mlx.models.architectures import ARCHITECTURES, Architecture

from .attention import Scoring, softcapped

Rope = tuple[Tensor, Tensor] | None
Attend = Callable[[Tensor, Tensor, Tensor, Scoring], Tensor]

_ATTENTION = "specstream"


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
    """What transformers' attention modules call: ``attend``, in the dtype of the values."""
    kind = value.dtype  # under autocast the rotary embedding returns float32
    scoring = Scoring(scaling, sliding_window, softcap)
    return attend(query.to(kind), key.to(kind), value, scoring), None


AttentionInterface.register(_ATTENTION, _attention)


class _Function(nn.Module):
    """A function in the place of a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


def _cast_once(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Under autocast cast hidden states once, not once for every projection that reads them."""
    name = "hidden_states"
    x = args[0] if args else kwargs[name]
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, name: x})


class Backbone:
    """The parts of a causal language model.

    Args:
        causal_lm: of a tested architecture, LoRA layers included. Its attention and MLP modules get
            a hook that changes nothing outside autocast.

    Raises:
        ConfigError: it is of another architecture.
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
        """The first layer's input (B, T, h) of ``tokens`` (B, T).

        Learned positions are part of it, so that streams start with their main row's.
        """
        hidden = self._decoder.embed_tokens(tokens)
        if self._architecture.positions == "learned":
            everywhere = torch.arange(tokens.shape[1], device=tokens.device)[None]
            hidden = hidden + self._decoder.embed_positions(tokens, position_ids=everywhere)
        return hidden

    def ropes(self, hidden: Tensor, length: int) -> list[Rope]:
        """For every layer the cosines and sines (1, length, d) of all positions up to ``length``.

        Args:
            hidden: any hidden states, for device and dtype.
            length: positions.

        Returns:
            One pair per layer, ``None`` each where positions are learned.
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
        """One layer on (B, rows, h).

        Args:
            index: of the layer.
            hidden: rows.
            rope: cosines and sines (B or 1, rows, d) at the rows' positions.
            attend: maps queries (B, Hq, rows, d), keys and values (B, Hkv, rows, d) and the
                layer's ``Scoring`` to (B, rows, Hq, d).
        """
        before = self.config._attn_implementation
        self.config._attn_implementation = _ATTENTION
        try:
            return self.layers[index](
                hidden, attention_mask=None, position_embeddings=rope, attend=attend
            )
        finally:
            self.config._attn_implementation = before

    def mlp(self, index: int, x: Tensor) -> Tensor:
        """A layer's MLP on (..., h), whatever now stands in its place."""
        for module in self._mlps[index]:
            x = module(x)
        return x

    @contextmanager
    def mlp_replaced(self, index: int, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Within: ``function``, (..., h) to (..., h), stands where the layer has its MLP."""
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
        """The final norm, where the model has one."""
        norm = getattr(self._decoder, self._architecture.norm)
        return hidden if norm is None else norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """LM head and its soft cap: (..., h) to (..., V), without the final norm."""
        return softcapped(self.head(hidden), self.softcap)


def _architecture(causal_lm: PreTrainedModel) -> Architecture:
    kind = causal_lm.config.model_type
    if kind not in ARCHITECTURES:
        raise ConfigError(f"the base is a {kind!r} model, expected one of {(*ARCHITECTURES,)}")
    return ARCHITECTURES[kind]


def linear_layers(causal_lm: PreTrainedModel) -> list[str]:
    """The names, without what is before the last dot, of the linear layers of a decoder layer.

    Raises:
        ConfigError: the model is of an architecture that is not tested.
    """
    _architecture(causal_lm)
    modules = causal_lm.get_decoder().layers[0].named_modules()
    return [name.rpartition(".")[2] for name, m in modules if isinstance(m, nn.Linear)]


def use_long_factors(causal_lm: PreTrainedModel) -> None:
    """Let a ``longrope`` model take its long factors for short texts too, as mlx-lm does.

    transformers takes the short ones as long as a text fits the original context.
    """
    rotary = getattr(causal_lm.get_decoder(), "rotary_emb", None)
    if getattr(rotary, "rope_type", None) == "longrope":
        length = rotary.config.rope_parameters["original_max_position_embeddings"] + 1
        rotary(torch.zeros(1), torch.arange(length)[None])  # this sets the frequencies
        rotary.rope_type = "default"  # which are left as they are from here on
