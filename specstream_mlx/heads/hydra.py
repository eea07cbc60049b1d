"""Hydra and Hydra++ (arXiv 2402.05109): heads that know the tokens of the path before them.

Head i, from 0 on, predicts the token behind a path of the next token and i drafts. It reads
``u = [P; E(x); E(c_1); ..; E(c_i)]``, with P the last hidden state H behind the final norm, and E
the target's embedding: ``z = R u + r + silu(L u + l)``, then ``z += silu(L' z + l')`` for each of
its further layers, then an LM head of its own with a bias, or the target's, which may score some
tokens only (``token_map``: vLLM's for Medusa). In Hydra++ P is the output of a Llama
layer of its own and of a norm, over the H of all rows. The layouts are those of zankner/Hydra
(``mlp_head.py``, ``prefix_mlp_head.py``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.llama import ModelArgs, TransformerBlock

from ..config import UserError
from ..engine.borrowed_model import FINAL, BorrowedModel
from ..engine.conditioned_guesses import guess
from ..engine.draft_head import AcceptedRows, Candidates, DraftHead, HeadConfig, Rank
from .own_rows import OwnRows, llama_args
from .tensors import Tensors, evaluated, take_token_map

KIND = "hydra"

_PREFIX = "prefix_embeding_layer."  # spelt so in the files
_UNUSED = ("embed_tokens.weight", "layers.0.self_attn.rotary_emb.inv_freq")
_LAYER = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_FAMILIES = ("llama", "mistral")


class _Layer(nn.Module):
    """``res_connection(x) + silu(linear(x))``; the identity where widths do not differ."""

    def __init__(self, width: int, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(width, hidden_size)
        if width != hidden_size:
            self.res_connection = nn.Linear(width, hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        through = self.res_connection(x) if "res_connection" in self else x
        return through + nn.silu(self.linear(x))


class _Prefix(nn.Module):
    """The layer of Hydra++ over the target's hidden states, and its norm."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.layers = [TransformerBlock(args)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)


@dataclass(frozen=True, eq=False)
class Hydra:
    """The weights of Hydra heads; a ``MountedHead``.

    Attributes:
        config: what drafting knows of them.
        layers: the layers of each head.
        lm_heads: the LM head of each head; empty: they share the target's.
        prefix: the layer of Hydra++; ``None``: plain Hydra.
        tokens: (n,) tokens that are scored; ``None``: all.
        boundaries: see ``MountedHead``.
    """

    config: HeadConfig
    layers: Sequence[Sequence[_Layer]]
    lm_heads: Sequence[nn.Linear]
    prefix: _Prefix | None = None
    tokens: mx.array | None = None
    boundaries: tuple[int, ...] = (FINAL,)

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text; see ``MountedHead``."""
        return _HydraOfText(self, model)


class _HydraOfText:
    """A ``DraftHead``; without a prefix layer, its rows stay empty."""

    def __init__(self, heads: Hydra, model: BorrowedModel):
        self._heads, self._model, self._rows = heads, model, OwnRows()
        self._shared_head = model.bare_head_of(heads.tokens)
        self._hidden: mx.array
        self._root: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        if self._heads.prefix is not None:
            self._prefixed(self._heads.prefix, features[0])
            self._rows.commit(len(tokens))

    def follow(self, rows: AcceptedRows) -> None:
        [hidden] = rows.features
        if self._heads.prefix is not None:
            hidden = self._prefixed(self._heads.prefix, hidden)
        self._hidden, self._root = hidden[rows.count - 1], rows.root

    def _prefixed(self, prefix: _Prefix, hidden: mx.array) -> mx.array:
        """Run the prefix layer over new rows (places, h); they are not committed yet."""
        stand_in, [layer] = self._rows.path(len(hidden)), prefix.layers
        mask: Any = stand_in.make_mask(len(hidden))  # mlx-lm's layers take "causal" too
        output = layer(hidden[None], mask, stand_in)
        self._rows.evaluate()
        return prefix.norm(output)[0]

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        read = self._hidden[None]

        def of_head(number: int, before: mx.array, rows: mx.array) -> Candidates:
            nonlocal read
            read = mx.concatenate([read[rows], self._model.embed(before)], axis=1)
            z = read
            for layer in self._heads.layers[number]:
                z = layer(z)
            if self._heads.lm_heads:
                logits = self._heads.lm_heads[number](z)
            else:
                logits = self._shared_head(z[None])[0]
            return rank(logits, self._heads.tokens, number)

        return guess(of_head, self._root, expansion, width)

    def commit(self, count: int) -> None:
        if self._heads.prefix is not None:
            self._rows.commit(count)

    def trim(self, count: int) -> None:
        self._rows.trim(count)


def is_hydra(tensors: Tensors) -> bool:
    """Whether the tensors are those of Hydra heads."""
    return any(name.startswith("hydra_mlp.") for name in tensors)


def read_hydra(tensors: Tensors) -> Hydra:
    """Make Hydra heads of their tensors.

    Raises:
        UserError: they do not fit together or do not fit the target, or are of a form of Hydra that
            is not known here.
    """
    hidden, vocab = tensors.target.hidden_size, tensors.target.vocab_size
    _check_form(tensors)
    numbers: dict[int, list[int]] = {}
    for name in tensors:
        if found := _LAYER.fullmatch(name):
            numbers.setdefault(int(found[1]), []).append(int(found[2]))
    heads: list[list[_Layer]] = []
    lm_heads: list[nn.Linear] = []
    for i in range(len(numbers)):
        if i not in numbers:
            raise UserError(f"{tensors.path} has {len(numbers)} Hydra heads and none numbered {i}")
        layers = []
        for place, number in enumerate(sorted(numbers[i])):
            layers.append(_Layer((i + 2) * hidden if place == 0 else hidden, hidden))
            tensors.load(layers[-1], f"hydra_mlp.{i}.{number}.")
        heads.append(layers)
        for name in (f"hydra_lm_head.{i}.", f"hydra_lm_head.{i}.1."):
            if f"{name}weight" in tensors:
                lm_heads.append(nn.Linear(hidden, vocab, bias=f"{name}bias" in tensors))
                tensors.load(lm_heads[-1], name)
    if lm_heads and len(lm_heads) < len(heads):
        raise UserError(
            f"{tensors.path} has {len(lm_heads)} LM heads for {len(heads)} Hydra heads, expected "
            "as many, or none"
        )
    tokens = take_token_map(tensors)
    if tokens is not None and lm_heads:
        raise UserError(f"{tensors.path} has a token_map and LM heads, expected one of them")
    prefix = _prefix(tensors) if f"{_PREFIX}norm.weight" in tensors else None
    tensors.check_all_taken(KIND)
    modules = [layer for layers in heads for layer in layers] + lm_heads
    parameters = evaluated([*modules, prefix] if prefix else modules)
    drafted = 0 if tokens is None else tokens.size
    config = HeadConfig(
        KIND, len(heads), "conditioned", drafted, parameters, own_rows=prefix is not None
    )
    return Hydra(config, heads, lm_heads, prefix, tokens)


def _check_form(tensors: Tensors) -> None:
    """Check that the head's configuration, if it has one, says nothing that is not computed here.

    Raises:
        UserError: it does.
    """
    known = {
        "hydra_head_arch": ("mlp", "prefix-mlp"),
        "grounded_heads": (True,),
        "hidden_state_offset": (0,),
    }
    for name, values in known.items():
        value = tensors.values.get(name, values[0])
        if value not in values:
            raise UserError(f"{tensors.path}: {name} is {value!r}, expected one of {list(values)}")


def _prefix(tensors: Tensors) -> _Prefix:
    """Take the prefix layer, which has the sizes of one of the target's."""
    config = tensors.target.config
    if config["model_type"] not in _FAMILIES:
        raise UserError(
            f"{tensors.path} has a layer of a Llama's form, and the model's model_type is "
            f"{config['model_type']!r}, expected one of {list(_FAMILIES)}"
        )
    prefix = _Prefix(llama_args(tensors.path, config))
    for name in _UNUSED:
        tensors.drop(_PREFIX + name)
    tensors.load(prefix, _PREFIX)
    return prefix
