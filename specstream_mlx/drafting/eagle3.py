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

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from mlx_lm.models.llama import MLP, Attention, ModelArgs

from ..adapters.lora import activations_dtype
from ..engine.borrowed_model import BorrowedModel, PositionedRope
from ..engine.draft_head import AcceptedRows, DraftHead, HeadConfig, OwnRows, Rank
from ..engine.guess import Candidates, guess
from ..engine.kv import UncommittedRows
from ..errors import UserError
from ..files import chosen_files, read_arrays, read_json, reason
from ..models.rope import POSITION_ONLY, check_rope, rope_fields, rope_parameters
from ..options import COUNT, OBJECT, POSITIVE, choice, integer

DEPTH = 6
"""Levels that are drafted: EAGLE-2's published depth. The layer itself has no limit."""

_IDS = "eagle_aux_hidden_state_layer_ids"


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


class _Network(nn.Module):
    """All modules of a head, by the names of its tensors, which say what it has."""

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
    """The weights of an EAGLE-3 head: a ``MountedHead`` and its ``Recurrence``, see there."""

    config: HeadConfig
    boundaries: tuple[int, ...]
    network: _Network
    tokens: mx.array | None
    norm_before_residual: bool
    norm_output: bool

    def begin(self, model: BorrowedModel) -> DraftHead:
        return RecurrentHead(self, model)

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        if "fc_norm" in self.network:
            pairs = zip(self.network.fc_norm, features, strict=True)
            features = tuple(norm(one) for norm, one in pairs)
        joined = mx.concatenate(list(features), axis=1)
        if "input_norm" in self.network:
            joined = self.network.input_norm(joined)
        return self.network.fc(joined)

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        own = "embed_tokens" in self.network
        return self.network.embed_tokens(tokens) if own else model.embed(tokens)

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


# The recurrence -----------------------------------------------------------------------------


class Recurrence(Protocol):
    """The weights of a recurrent head, such as EAGLE's; rows are (rows, h)."""

    @property
    def tokens(self) -> mx.array | None:
        """(n,) tokens that are drafted; ``None``: all."""

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        """Make the features of rows that the target has seen, from its hidden states."""

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        """Return the embeddings of tokens (rows,)."""

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        """Run the layer over new rows; returns their output, the next rows' features."""

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        """Return a function of output: logits (rows, n) of the token after each row."""


class RecurrentHead:
    """A ``DraftHead`` by EAGLE's recurrence, of one sequence.

    Row i of the layer is a feature f_i with the token after it, x_{i+1}. Each step reads the rows
    that it accepts, with the target's features in place of drafted ones, and drafts after them.
    """

    def __init__(self, weights: Recurrence, model: BorrowedModel):
        self._weights, self._model, self._rows = weights, model, OwnRows()
        self._score = weights.scorer(model)
        self._held: mx.array | None = None  # (1, h), a row whose next token is not known yet
        self._early = 0  # rows of the newest path that were held back before
        self._places = 0
        self._count: mx.array  # () rows of the newest path that count
        self._output: mx.array  # (1, h) of the last of these
        self._root: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        """Take in committed rows of the prompt; the last one is held back."""
        own, following = self._weights.of_target(features), tokens[1:]
        if self._held is not None:
            own, following = mx.concatenate([self._held, own]), tokens
        self._held = own[-1:]
        if following.size:
            self._run(own[:-1], following)
            self._rows.commit(following.size)
        mx.async_eval(self._held)

    def follow(self, rows: AcceptedRows) -> None:
        """Take in the rows that a step accepts, after the one that was held back."""
        own, following, count = self._weights.of_target(rows.features), rows.following, rows.count
        self._early = 0
        if self._held is not None:
            own = mx.concatenate([self._held, own])
            following = mx.concatenate([rows.tokens[:1], following])
            count, self._early, self._held = count + 1, 1, None
        self._places, self._count, self._root = len(own), count, rows.root
        output = self._run(own, following)
        self._output = mx.take(output, (count - 1)[None], axis=0)

    def _run(self, features: mx.array, following: mx.array) -> mx.array:
        """Run the layer over places after the committed rows, which are not committed yet."""
        embeddings = self._weights.embed(self._model, following)
        output = self._weights.layer(embeddings, features, self._rows.path())
        self._rows.evaluate()
        return output

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        weights, output = self._weights, self._output
        on_path = mx.arange(self._places) < self._count
        earlier = mx.zeros((1, 0), mx.bool_)  # each row's drafted ancestors and itself

        def of_level(level: int, before: mx.array, rows: mx.array) -> Candidates:
            nonlocal output, earlier
            if level:
                paths = len(before)
                earlier = mx.concatenate([earlier[rows], mx.eye(paths).astype(mx.bool_)], axis=1)
                path = mx.broadcast_to(on_path, (paths, self._places))
                # A row's position is that of its feature; the first drafted one is after the path.
                positions = mx.broadcast_to(self._rows.count + self._count + level - 1, (paths,))
                drafts = self._rows.drafts(positions, mx.concatenate([path, earlier], axis=1))
                embeddings = weights.embed(self._model, before)
                output = weights.layer(embeddings, output[rows], drafts)
            return rank(self._score(output), weights.tokens, level)

        return guess(of_level, self._root, expansion, width)

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows that a step accepted, and the one held back before."""
        self._rows.commit(count + self._early)
        self._early = 0

    def trim(self, count: int) -> None:
        self._rows.trim(count)


# Files --------------------------------------------------------------------------------------


def read_head(directory: Path, model: nn.Module, config: Mapping[str, Any]) -> Eagle3:
    """Read an EAGLE-3 head and check that it fits a target, an mlx-lm model and its ``config``."""
    arrays: dict[str, mx.array] = {}
    for file in head_files(directory):
        arrays |= read_arrays(file)
    return head_of(directory, arrays, head_config(directory), model, config)


def head_files(directory: Path) -> list[Path]:
    """List the safetensors of a draft head, without reading one, or refuse the directory."""
    if not os.path.isdir(directory):
        raise UserError(f"the draft head {directory} is not a directory, expected one")
    files = chosen_files(directory, "*.safetensors")
    if not files:
        raise UserError(
            f"the draft head {directory} has no safetensors, expected an EAGLE-3 head's: "
            "specstream-mlx convert --draft-head makes them of torch's files"
        )
    return files


def head_config(directory: Path) -> dict[str, Any]:
    """Read a head's ``config.json``; empty where it has none."""
    path = directory / "config.json"
    return read_json(path) if os.path.lexists(path) else {}


def head_of(
    directory: Path,
    arrays: Mapping[str, mx.array],
    values: Mapping[str, Any],
    model: nn.Module,
    config: Mapping[str, Any],
) -> Eagle3:
    """Make an EAGLE-3 head of its tensors by name and the values of its ``config.json``."""
    named = {name.replace("layers.0.", "midlayer.", 1): array for name, array in arrays.items()}
    named.pop("midlayer.self_attn.rotary_emb.inv_freq", None)
    if "midlayer.hidden_norm.weight" not in named or "fc.weight" not in named:
        raise UserError(f"the draft head {directory} has other tensors, expected EAGLE-3's")
    kind = values.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise UserError(f"{directory}: speculators_model_type is {kind!r}, expected 'eagle3'")
    args = llama_args(directory, values.get("transformer_layer_config", values))
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    if "embed_tokens.weight" not in named and args.hidden_size != hidden:
        raise UserError(
            f"{directory}: hidden_size is {args.hidden_size} and there is no embed_tokens.weight, "
            f"expected the model's {hidden}"
        )
    _check_vocabulary(directory, named, values, vocab)
    for flag, name in {"norm_before_fc": "input_norm", "fc_norm": "fc_norm.0"}.items():
        if values.get(flag) is True and f"{name}.weight" not in named:
            raise UserError(f"{directory}: {flag} is true and {name}.weight is missing")
    boundaries = _boundaries(directory, values, config["num_hidden_layers"])
    width = named["fc.weight"].shape[-1]
    if len(boundaries) * hidden != width:
        raise UserError(
            f"{directory}: fc.weight reads {width} values, expected {len(boundaries)} hidden "
            f"states of {hidden}"
        )
    tokens = _drafted(directory, named, vocab)
    drafted = vocab if tokens is None else tokens.size
    network = _Network(args, width, len(boundaries), named, drafted, vocab)
    parameters = load_weights(directory, network, named, activations_dtype(model))
    vocabulary = 0 if tokens is None else tokens.size
    head = HeadConfig("eagle3", DEPTH, "conditioned", vocabulary, parameters, own_rows=True)
    before, after = (values.get(name) is True for name in ("norm_before_residual", "norm_output"))
    return Eagle3(head, boundaries, network, tokens, before, after)


def load_weights(
    directory: Path, network: nn.Module, arrays: Mapping[str, mx.array], dtype: mx.Dtype
) -> int:
    """Give a network its weights, in a dtype, or refuse what does not fit; returns their number."""
    for name, array in arrays.items():
        if not mx.issubdtype(array.dtype, mx.floating):
            raise UserError(f"{directory}: {name} has dtype {array.dtype}, expected a float's")
    try:
        network.load_weights([(name, array.astype(dtype)) for name, array in arrays.items()])
    except ValueError as error:
        said = reason(ValueError(" ".join(str(error).split())))
        raise UserError(f"the draft head {directory} does not fit: {said}") from None
    mx.eval(network.parameters())
    weights: Any = tree_flatten(network.parameters())
    return sum(array.size for _, array in weights)


def llama_args(directory: Path, config: Any) -> ModelArgs:
    """Read the sizes and the rope of a Llama layer from a ``config.json`` of transformers'."""
    OBJECT.check(f"{directory}: the layer", config)
    choice("silu").check(f"{directory}: hidden_act", config.get("hidden_act", "silu"))
    if "sliding_attention" in str(config.get("layer_types")):
        raise UserError(f"{directory}: its layer attends in a window, expected 'full_attention'")
    needed = "hidden_size", "intermediate_size", "num_attention_heads"
    for name in (*needed, "num_key_value_heads", "head_dim"):
        if name in needed or config.get(name) is not None:
            COUNT.check(f"{directory}: {name}", config.get(name))
    values: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}  # transformers'
    rope = rope_parameters(config)
    check_rope(rope, config, POSITION_ONLY)
    values |= {**config, **rope_fields(rope, config), "attention_bias": False, "mlp_bias": False}
    POSITIVE.check(f"{directory}: rms_norm_eps", values["rms_norm_eps"])
    if values.get("head_dim") is None:
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
    values |= {"model_type": "llama", "num_hidden_layers": 1, "layer_types": None, "vocab_size": 0}
    return ModelArgs.from_dict(values)


def _boundaries(directory: Path, values: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Find the boundaries whose hidden states ``fc`` reads; without ids they are the authors'."""
    # Ids in an eagle_config are layers whose outputs are read, unless that is after the last one.
    nested, ids = values.get("eagle_config"), values.get(_IDS)
    if ids is None and isinstance(nested, dict) and nested.get(_IDS) is not None:
        ids = nested[_IDS]
        if isinstance(ids, list) and all(isinstance(i, int) and i < layers for i in ids):
            ids = [number + 1 for number in ids]
    if ids is None:
        ids = [2, layers // 2, layers - 3]
    if not isinstance(ids, list):
        raise UserError(f"{directory}: {_IDS} is {ids!r}, expected a list of layers")
    for number in ids:
        integer(0, layers).check(f"{directory}: a number of {_IDS}", number)
    return tuple(ids)


def _check_vocabulary(
    directory: Path, named: Mapping[str, mx.array], values: Mapping[str, Any], vocab: int
) -> None:
    """Check that the head speaks of the model's vocabulary, in its tensors or its configuration."""
    layer = values.get("transformer_layer_config", values)
    sizes = [layer.get("vocab_size")] if isinstance(layer, Mapping) else []
    sizes += [named["t2d"].size] if "t2d" in named else []
    found = {size for size in sizes if isinstance(size, int)}
    if found and vocab not in found:
        raise UserError(
            f"{directory}: the head was trained for a model of {max(found)} tokens, which is not "
            f"this one, expected {vocab}"
        )


def _drafted(directory: Path, named: dict[str, mx.array], vocab: int) -> mx.array | None:
    """Take the tokens that are drafted, from ``d2t``; ``None``: all. ``t2d`` says the same."""
    offsets, chosen = named.pop("d2t", None), named.pop("t2d", None)
    if offsets is None:
        if chosen is not None:
            raise UserError(f"{directory} has t2d and no d2t, expected both or neither")
        return None
    ids = offsets + mx.arange(offsets.size)
    values: Any = ids.tolist() if ids.ndim == 1 and ids.size else [-1]
    if len(set(values)) < len(values) or min(values) < 0 or max(values) >= vocab:
        raise UserError(
            f"{directory} does not name {ids.size} different tokens to draft, expected some of 0 "
            f"to {vocab - 1}"
        )
    if chosen is not None and np.flatnonzero(np.array(chosen)).tolist() != sorted(values):
        raise UserError(
            f"{directory}: t2d and d2t name different tokens, expected the same: d2t has distances "
            "between ids, not ids"
        )
    return ids.astype(mx.int32)
