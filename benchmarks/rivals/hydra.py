"""Hydra and Hydra++ (arXiv 2402.05109): heads that know the tokens of the path before them.

Head i, from 0 on, predicts the token behind a path of the next token and i drafts. It reads
``u = [P; E(x); E(c_1); ..; E(c_i)]``, with P the last hidden state H behind the final norm, and E
the target's embedding: ``z = R u + r + silu(L u + l)``, then ``z += silu(L' z + l')`` for each of
its further layers, then an LM head of its own with a bias, or the target's, which may score some
tokens only (``token_map``: vLLM's for Medusa). In Hydra++ P is the output of a Llama layer of its
own and of a norm, over the H of all rows. The layouts are those of zankner/Hydra.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.llama import ModelArgs, TransformerBlock

from specstream_mlx import UserError
from specstream_mlx.drafting.eagle3 import llama_args, load_weights
from specstream_mlx.engine.borrowed_model import FINAL, BorrowedModel
from specstream_mlx.engine.draft_head import (
    AcceptedRows,
    DraftHead,
    HeadConfig,
    OwnRows,
    Rank,
)
from specstream_mlx.engine.guess import Candidates, guess

from .head_tensors import Tensors

_PREFIX = "prefix_embeding_layer."  # spelt so in the files
_UNUSED = re.compile(rf"^{_PREFIX}(embed_tokens|layers\.0\.self_attn\.rotary_emb)\.")
_LAYER = re.compile(r"^hydra_mlp\.(\d+)\.(\d+)\.(.*)$")
_LM_HEAD = re.compile(r"^hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)$")
_KNOWN = {
    "hydra_head_arch": ("mlp", "prefix-mlp"),
    "grounded_heads": (True,),
    "hidden_state_offset": (0,),
}


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


class _Network(nn.Module):
    """All modules: the layers and, if there are any, the LM head of each head, and the prefix."""

    def __init__(self, heads: list[list[_Layer]], lm_heads: list[nn.Linear], prefix: Any):
        super().__init__()
        self.heads, self.lm_heads = heads, lm_heads
        if prefix is not None:
            self.prefix = prefix


@dataclass(frozen=True, eq=False)
class Hydra:
    """The weights of Hydra heads; a ``MountedHead``.

    Attributes:
        config: what drafting knows of them.
        network: their modules.
        tokens: (n,) tokens that are scored; ``None``: all.
    """

    config: HeadConfig
    network: _Network
    tokens: mx.array | None = None
    boundaries: tuple[int, ...] = (FINAL,)

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text."""
        return _HydraOfText(self, model)


class _HydraOfText:
    """A ``DraftHead``; without a prefix layer, its rows stay empty."""

    def __init__(self, heads: Hydra, model: BorrowedModel):
        self._network, self._tokens = heads.network, heads.tokens
        self._model, self._rows = model, OwnRows()
        self._prefix: _Prefix | None = heads.network.get("prefix")
        self._shared_head = model.bare_head_of(heads.tokens)
        self._hidden: mx.array
        self._root: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        if self._prefix is not None:
            self._prefixed(self._prefix, features[0])
            self._rows.commit(len(tokens))

    def follow(self, rows: AcceptedRows) -> None:
        [hidden] = rows.features
        if self._prefix is not None:
            hidden = self._prefixed(self._prefix, hidden)
        self._hidden, self._root = hidden[rows.count - 1], rows.root

    def _prefixed(self, prefix: _Prefix, hidden: mx.array) -> mx.array:
        """Run the prefix layer over new rows (places, h); they are not committed yet."""
        stand_in, [layer] = self._rows.path(), prefix.layers
        mask: Any = stand_in.make_mask(len(hidden))  # mlx-lm's layers take "causal" too
        output = layer(hidden[None], mask, stand_in)
        self._rows.evaluate()
        return prefix.norm(output)[0]

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        read, network = self._hidden[None], self._network

        def of_head(number: int, before: mx.array, rows: mx.array) -> Candidates:
            nonlocal read
            read = mx.concatenate([read[rows], self._model.embed(before)], axis=1)
            z = read
            for layer in network.heads[number]:
                z = layer(z)
            own = network.lm_heads[number](z) if network.lm_heads else None
            logits = self._shared_head(z[None])[0] if own is None else own
            return rank(logits, self._tokens, number)

        return guess(of_head, self._root, expansion, width)

    def commit(self, count: int) -> None:
        if self._prefix is not None:
            self._rows.commit(count)

    def trim(self, count: int) -> None:
        self._rows.trim(count)


def is_hydra(tensors: Tensors) -> bool:
    """Whether the tensors are those of Hydra heads."""
    return any(name.startswith("hydra_mlp.") for name in tensors.arrays)


def read_hydra(tensors: Tensors) -> Hydra:
    """Make Hydra heads of their tensors.

    Raises:
        UserError: they do not fit together or do not fit the target, or are of a form of Hydra that
            is not known here.
    """
    for name, values in _KNOWN.items():
        if (value := tensors.values.get(name, values[0])) not in values:
            raise UserError(
                f"{tensors.directory}: {name} is {value!r}, expected one of {list(values)}"
            )
    hidden, tokens = tensors.hidden_size, tensors.token_map("token_map")
    named, numbers, prefix, biased = {}, dict[int, list[int]](), None, False
    for name in sorted(tensors.arrays):
        if (found := _LAYER.match(name)) and int(found[2]) not in numbers.setdefault(
            int(found[1]), []
        ):
            numbers[int(found[1])].append(int(found[2]))
    for name, array in tensors.arrays.items():
        if found := _LAYER.match(name):
            place = sorted(numbers[int(found[1])]).index(int(found[2]))  # others are dropout
            named[f"heads.{found[1]}.{place}.{found[3]}"] = array
        elif found := _LM_HEAD.match(name):
            named[f"lm_heads.{found[1]}.{found[2]}"] = array
            biased = biased or found[2] == "bias"
        elif not _UNUSED.match(name):
            named[name.replace(_PREFIX, "prefix.", 1)] = array
    heads = [
        [_Layer(hidden if j else (i + 2) * hidden, hidden) for j in range(len(numbers.get(i, [])))]
        for i in range(len(numbers))
    ]
    own = any(name.startswith("lm_heads.") for name in named)
    count = len(heads) if own else 0
    lm_heads = [nn.Linear(hidden, tensors.vocab_size, bias=biased) for _ in range(count)]
    if "prefix.norm.weight" in named:
        if tensors.target["model_type"] not in ("llama", "mistral"):
            raise UserError(f"{tensors.directory} has a layer of a Llama's form, unlike the model")
        prefix = _Prefix(llama_args(tensors.directory, tensors.target))
    network = _Network(heads, lm_heads, prefix)
    parameters = load_weights(tensors.directory, network, named, tensors.dtype)
    drafted = 0 if tokens is None else tokens.size
    config = HeadConfig(
        "hydra", len(heads), "conditioned", drafted, parameters, own_rows=prefix is not None
    )
    return Hydra(config, network, tokens)
