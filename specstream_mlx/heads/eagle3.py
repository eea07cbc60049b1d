"""EAGLE-3 (arXiv 2503.01840): a layer that drafts tokens, from hidden states of several depths.

A row's feature g is ``fc`` of the target's hidden states at some boundaries, side by side, or for a
drafted row the layer's own output. With a token's embedding E(x), ``u = [n_e(E(x)); n_g(g)]``,
``y = g + Attn(u)``, ``o = y + MLP(n(y))``; the logits are ``lm_head(n'(o))``, with an LM head of
the head's own, often over some tokens only: ``d2t`` has the distance of each to its id in the
target's vocabulary. The next g is o. Layouts: SafeAILab/EAGLE (``cnets.py``) and ``speculators``
(``models/eagle3``), with its options ``norm_before_residual`` (n_g(g) in place of g in y),
``norm_before_fc``, ``fc_norm`` and ``norm_output`` (the next g is n'(o)).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.llama import ModelArgs

from ..config import UserError, check_integer, shown
from ..engine.borrowed_model import BorrowedModel
from ..engine.draft_head import DraftHead, HeadConfig
from ..engine.kv import UncommittedRows
from .eagle import Layer, layer_args
from .recurrent import DEPTH, RecurrentHead
from .tensors import Tensors, draft_tokens, evaluated

KIND = "eagle3"

_IDS = "eagle_aux_hidden_state_layer_ids"
_NAMES = ("midlayer.", "layers.0.")  # of the layer: the authors', and speculators'
_TYPES = (None, "eagle3")
_EMBEDDING = "embed_tokens.weight"


class _Layer(Layer):
    def __init__(self, args: ModelArgs):
        super().__init__(args, 2 * args.hidden_size)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)


class _Network(nn.Module):
    """All modules of a head but its layer, whose name differs."""

    def __init__(self, args: ModelArgs, width: int, vocab_size: int, names: Sequence[str]):
        super().__init__()
        hidden, epsilon = args.hidden_size, args.rms_norm_eps
        self.fc = nn.Linear(width, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, eps=epsilon)
        self.lm_head = nn.Linear(hidden, vocab_size, bias=False)
        if "input_norm" in names:
            self.input_norm = nn.RMSNorm(width, eps=epsilon)


@dataclass(frozen=True, eq=False)
class Eagle3:
    """The weights of an EAGLE-3 head: a ``MountedHead`` and its ``Recurrence``.

    Attributes:
        config: what drafting knows of it.
        boundaries: see ``MountedHead``.
        network: ``fc``, norms and LM head.
        own: the layer.
        embedding: (vocab, h) an embedding of its own; ``None``: the target's.
        feature_norms: a norm for each boundary; empty: none.
        tokens: see ``Recurrence``.
        norm_before_residual, norm_output: see above.
    """

    config: HeadConfig
    boundaries: tuple[int, ...]
    network: _Network
    own: _Layer
    embedding: mx.array | None
    feature_norms: Sequence[nn.RMSNorm]
    tokens: mx.array | None
    norm_before_residual: bool
    norm_output: bool

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text; see ``MountedHead``."""
        return RecurrentHead(self, model)

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        """Apply ``fc`` to the hidden states of the boundaries; see ``Recurrence``."""
        if self.feature_norms:
            pairs = zip(self.feature_norms, features, strict=True)
            features = tuple(norm(one) for norm, one in pairs)
        beside = mx.concatenate(list(features), axis=1)
        if "input_norm" in self.network:
            beside = self.network.input_norm(beside)
        return self.network.fc(beside)

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        """Return embeddings; see ``Recurrence``."""
        return model.embed(tokens) if self.embedding is None else self.embedding[tokens]

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        """Run the layer; see ``Recurrence``."""
        normed = self.own.hidden_norm(features)
        x = mx.concatenate([self.own.input_layernorm(embeddings), normed], axis=1)
        output = self.own.behind(x, normed if self.norm_before_residual else features, rows)
        return self.network.norm(output) if self.norm_output else output

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        """Return norm and LM head; see ``Recurrence``."""
        network = self.network
        if self.norm_output:
            return network.lm_head
        return lambda output: network.lm_head(network.norm(output))


def is_eagle3(tensors: Tensors) -> bool:
    """Whether the tensors are those of an EAGLE-3 head."""
    return "fc.weight" in tensors and any(f"{n}hidden_norm.weight" in tensors for n in _NAMES)


def read_eagle3(tensors: Tensors) -> Eagle3:
    """Make an EAGLE-3 head of its tensors and its configuration.

    Raises:
        UserError: they do not fit together or do not fit the target, or are of a form that is not
            known here.
    """
    values, target = tensors.values, tensors.target
    kind = values.get("speculators_model_type")
    if kind not in _TYPES:
        raise UserError(f"{tensors.path}: speculators_model_type is {kind!r}, expected 'eagle3'")
    name = next(name for name in _NAMES if f"{name}hidden_norm.weight" in tensors)
    args = layer_args(tensors, values.get("transformer_layer_config", values), name)
    width = tensors.matrix_shape("fc.weight")[1]
    boundaries = _boundaries(tensors, width)
    tokens = _drafted(tensors)
    drafted = target.vocab_size if tokens is None else tokens.size
    embedding = tensors.take_if_any(_EMBEDDING, target.vocab_size, args.hidden_size)
    if embedding is None and args.hidden_size != target.hidden_size:
        raise UserError(
            f"{tensors.path}: hidden_size is {args.hidden_size} and there is no {_EMBEDDING}, "
            f"expected the model's {target.hidden_size}"
        )
    own = _Layer(args)
    tensors.drop(f"{name}self_attn.rotary_emb.inv_freq")
    tensors.load(own, name)
    norms = []
    for number in range(len(boundaries) if "fc_norm.0.weight" in tensors else 0):
        norms.append(nn.RMSNorm(target.hidden_size, eps=args.rms_norm_eps))
        tensors.load(norms[-1], f"fc_norm.{number}.")
    names = ["input_norm"] if "input_norm.weight" in tensors else []
    network = _Network(args, width, drafted, names)
    tensors.load(network, "")
    tensors.check_all_taken(KIND)
    parameters = evaluated([own, network, *norms])
    if embedding is not None:
        mx.eval(embedding)
        parameters += embedding.size
    return Eagle3(
        HeadConfig(
            KIND,
            DEPTH,
            "conditioned",
            draft_vocabulary=0 if tokens is None else tokens.size,
            parameters=parameters,
            own_rows=True,
        ),
        boundaries,
        network,
        own,
        embedding,
        norms,
        tokens,
        _flag(tensors, "norm_before_residual"),
        _flag(tensors, "norm_output"),
    )


def _flag(tensors: Tensors, name: str) -> bool:
    """Read a field of the configuration that is true or false, the latter without it.

    Raises:
        UserError: it is neither.
    """
    value = tensors.values.get(name)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{tensors.path}: {name} is {shown(value)}, expected true or false")
    return bool(value)


def _boundaries(tensors: Tensors, width: int) -> tuple[int, ...]:
    """Find the boundaries whose hidden states ``fc`` reads.

    There are two conventions, one apart: at the top of a configuration the ids are boundaries, in
    its ``eagle_config`` they are layers, whose outputs are read. Where those would lie behind the
    last layer, they must have been boundaries too. Without ids they are the authors'.

    Raises:
        UserError: they are none of the target's, or not as many as ``fc`` reads.
    """
    layers, hidden = tensors.target.num_layers, tensors.target.hidden_size
    nested = tensors.values.get("eagle_config")
    ids: Any = tensors.values.get(_IDS)
    if ids is None and isinstance(nested, dict) and nested.get(_IDS) is not None:
        ids = nested[_IDS]
        if isinstance(ids, list) and all(isinstance(i, int) and i < layers for i in ids):
            ids = [number + 1 for number in ids]
    if ids is None:
        ids = [2, layers // 2, layers - 3]
    if not isinstance(ids, list):
        raise UserError(f"{tensors.path}: {_IDS} is {ids!r}, expected a list of layers")
    for number in ids:
        check_integer(f"{tensors.path}: a number of {_IDS}", number, least=0, most=layers)
    if len(ids) * hidden != width:
        raise UserError(
            f"{tensors.path}: fc.weight reads {width} values, expected {len(ids)} hidden states of "
            f"{hidden}"
        )
    return tuple(ids)


def _drafted(tensors: Tensors) -> mx.array | None:
    """Take the tokens that are drafted; ``None``: all.

    Raises:
        UserError: ``d2t`` and ``t2d`` do not describe the same tokens of the target.
    """
    vocab = tensors.target.vocab_size
    if "d2t" not in tensors:
        if "t2d" in tensors:
            raise UserError(f"{tensors.path} has t2d and no d2t, expected both or neither")
        return None
    offsets = tensors.take_integers("d2t")
    tokens = draft_tokens(tensors, "d2t", offsets + mx.arange(offsets.size), vocab)
    if "t2d" in tensors:
        chosen = tensors.take_integers("t2d") != 0
        same = chosen.shape == (vocab,) and chosen.sum().item() == tokens.size
        if not (same and chosen[tokens].all().item()):
            raise UserError(
                f"{tensors.path}: t2d and d2t name different tokens, expected the same: d2t has "
                "distances between ids, not ids"
            )
    return tokens
