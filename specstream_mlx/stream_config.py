"""The configuration of an adapter's streams, which PyTorch training and the MLX runtime share.

Pure Python: neither torch nor mlx is imported here.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .errors import MOST_LAYERS, MOST_STREAMS, VOCABULARY, Mode, UserError, shown
from .options import TEXT, check_options, choice, integer, made_of, number, option, what

FORMAT_VERSION = 2
"""Version of the ``speculative_streaming`` object that this release writes and reads."""

_DROPPED = {
    "stream_window": 0,
    "stream_prefix": 0,
    "stream_prefix_size": 0,
    "pruner_form": "residual",
}
"""Fields of earlier releases and the only value of each that this one reads."""

_TEMPLATE = what(
    "text with {text} in it", lambda value: isinstance(value, str) and "{text}" in value
)
_VERSION = what(
    f"{FORMAT_VERSION}, which this release reads",
    lambda value: type(value) is int and value == FORMAT_VERSION,
)
_RANKS = {
    "stream_init_rank": ("stream_init", "identity", "value_rotation"),
    "stream_adapter_rank": ("stream_mlp", "base"),
    "stream_head_rank": ("stream_head", "plain"),
}
"""For each rank: the field that decides whether it is used, and the values with which it is 0."""


def check_value_rotation(stream_init: str, epsilon: float, num_streams: int) -> None:
    """Check that stream 1 turns, and the last one by less than a full turn: then all differ."""
    name = "value_rotation_epsilon"
    if stream_init != "value_rotation":
        if epsilon:
            raise UserError(
                f"{name} is {shown(epsilon)} with stream_init {shown(stream_init)}, expected 0: "
                "only 'value_rotation' turns"
            )
    elif not (0 < epsilon < 2 * math.pi / num_streams):
        raise UserError(
            f"{name} is {shown(epsilon)} with stream_init 'value_rotation', expected more than 0 "
            f"and less than 2 pi / num_streams = {2 * math.pi / num_streams:.4g} radians"
        )


@dataclass(frozen=True)
class StreamConfig:
    """The ``speculative_streaming`` object of an adapter directory.

    Args:
        mode: ``lossless`` (base frozen, the main stream never sees a stream) or ``shared`` (LoRA
            shared by main stream and streams, Eq. 3).
        num_streams: gamma; stream j of a position predicts ``y_{t+j}``.
        num_msa_layers: N_s, the top layers in which the streams run.
        hidden_size, num_hidden_layers: of the base.
        stream_init: ``identity`` or ``linear`` (of rank ``stream_init_rank``, eta) for ``f_eta`` of
            Eq. 4; or ``value_rotation``, which has no stream embeddings: stream j's values turn by
            ``value_rotation_epsilon * j`` radians.
        stream_mlp: the streams' path where the main stream has its MLP: ``base`` (the MLP itself:
            shared mode), ``adapter`` (instead of it, App. H.2) or ``base+adapter`` (beside it, Fig.
            2a).
        stream_adapter_rank: rank of the stream adapters; 0 where ``stream_mlp`` is ``base``.
        stream_head: ``plain`` (the base's norm and head on each stream, as in the papers) or
            ``conditioned`` (on the token before too, see ``models.streams.ConditionedHead``).
        stream_head_rank: rows of its D; 0 with ``plain``.
        draft_vocabulary: number of tokens that the streams' head scores, the most frequent ones of
            the training text; 0: all. The target is not limited.
        stream_keys: number of main rows that a stream attends to in each MSA layer, those that its
            own main row weighs most (App. H.1, where they are 64); 0: all. The weights are the
            softmax of the main row's scores of the main rows that it sees, within the layer's
            sliding window, summed over the query heads. Rows with at least the ``stream_keys``-th
            largest weight are selected, for all heads of a layer alike.
        pruner_rank: rank of the early-exit pruner's ``B A``; 0 for no pruner.
        base_model: the base's name or path, for people.
        base_fingerprint: ``models.fingerprint`` of the base's ``config.json``.
        prompt_template: text with ``{text}`` where the user's raw text goes; it becomes the user's
            turn of the chat. ``None`` leaves the text as it is.
    """

    mode: Mode = option(..., choice("lossless", "shared"))
    num_msa_layers: int = option(..., integer(1, MOST_LAYERS))
    hidden_size: int = option(..., integer(1))
    num_hidden_layers: int = option(..., integer(1, MOST_LAYERS))
    num_streams: int = option(4, integer(1, MOST_STREAMS))
    stream_init: str = option("identity", choice("identity", "linear", "value_rotation"))
    stream_init_rank: int = option(0, integer(0))
    value_rotation_epsilon: float = option(0.0, number())
    stream_mlp: str = option("base", choice("base", "adapter", "base+adapter"))
    stream_adapter_rank: int = option(0, integer(0))
    stream_head: str = option("plain", choice("plain", "conditioned"))
    stream_head_rank: int = option(0, integer(0))
    draft_vocabulary: int = option(0, integer(0))
    stream_keys: int = option(0, integer(0))
    pruner_rank: int = option(8, integer(0))
    base_model: str = option("", TEXT)
    base_fingerprint: str = option("", TEXT)
    prompt_template: str | None = option(None, _TEMPLATE)
    version: int = option(FORMAT_VERSION, _VERSION)

    def __post_init__(self) -> None:
        check_options(self)
        check_value_rotation(self.stream_init, self.value_rotation_epsilon, self.num_streams)
        if self.num_msa_layers > self.num_hidden_layers:
            raise UserError(
                f"num_msa_layers is {self.num_msa_layers}, "
                f"expected at most num_hidden_layers = {self.num_hidden_layers}"
            )
        for name, (owner, *without) in _RANKS.items():
            rank, kind = getattr(self, name), getattr(self, owner)
            if (kind in without) != (rank == 0):
                raise UserError(
                    f"{name} is {rank} with {owner} {kind!r}, expected 0 with "
                    f"{' or '.join(map(repr, without))} and a rank otherwise"
                )

    @property
    def first_msa_layer(self) -> int:
        """Index of the layer at which the streams start, ``N - N_s``."""
        return self.num_hidden_layers - self.num_msa_layers

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every stream and pruner tensor; maps are ``(out, in)``."""
        h = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        if self.stream_init != "value_rotation":
            shapes["streams.embeddings"] = (self.num_streams, h)
        if self.stream_init == "linear":
            shapes["streams.init.down.weight"] = (self.stream_init_rank, h)
            shapes["streams.init.up.weight"] = (h, self.stream_init_rank)
        if self.stream_adapter_rank:
            for layer in range(self.first_msa_layer, self.num_hidden_layers):
                shapes[f"streams.adapters.{layer}.down.weight"] = (self.stream_adapter_rank, h)
                shapes[f"streams.adapters.{layer}.up.weight"] = (h, self.stream_adapter_rank)
        if self.stream_head_rank:
            shapes["streams.head.down.weight"] = (self.stream_head_rank, 2 * h)
            shapes["streams.head.biases"] = (self.num_streams, self.stream_head_rank)
            shapes["streams.head.up.weight"] = (h, self.stream_head_rank)
        if self.draft_vocabulary:
            shapes[VOCABULARY] = (self.draft_vocabulary,)
        if self.pruner_rank:
            shapes["pruner.down.weight"] = (self.pruner_rank, h)
            shapes["pruner.up.weight"] = (h, self.pruner_rank)
        return shapes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StreamConfig":
        """Read the JSON object; a wrong field is a ``UserError``."""
        for name, usual in _DROPPED.items():
            if (value := values.get(name, usual)) != usual or type(value) is not type(usual):
                raise UserError(
                    f"{name} is {shown(value)}, expected {shown(usual)}: no other streams are run"
                )
        values = {name: value for name, value in values.items() if name not in _DROPPED}
        return made_of(cls, values)
