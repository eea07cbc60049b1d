"""The configuration of an adapter's streams, which PyTorch training and the MLX runtime share.

Pure Python: neither torch nor mlx is imported here.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

Mode = Literal["lossless", "shared"]

FORMAT_VERSION = 2
"""Version of the ``speculative_streaming`` object that this release writes and reads."""

_CHOICES = {
    "mode": ("lossless", "shared"),
    "stream_init": ("identity", "linear", "value_rotation"),
    "stream_mlp": ("base", "adapter", "base+adapter"),
    "stream_head": ("plain", "conditioned"),
    "pruner_form": ("residual", "literal"),
}


class UserError(ValueError):
    """A mistake in the user's input; the message is one sentence that says what to change."""


class ConfigError(UserError):
    """A field of the configuration is missing, unknown or out of range."""


VOCABULARY = "streams.vocabulary"
"""The name of the only tensor of integers: the token ids of the draft vocabulary, int32."""

MOST = 2**31 - 1
"""The largest size: MLX counts the elements of an axis in 32 bits."""

MOST_LAYERS = 4096
MOST_STREAMS = 1024
MAX_TREE_SIZE = 4096


def shown(value: Any, limit: int = 80) -> str:
    """Return a value as text for a sentence, on one line and cut to ``limit`` characters."""
    if isinstance(value, int) and value.bit_length() > 4 * limit:
        return "a number of more digits than fit here"
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[:limit]} .."


def is_integer(value: Any) -> bool:
    """Check for an integer, of Python's or numpy's, that is no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def expected_integer(value: Any, least: int = 1, most: int = MOST) -> str | None:
    """Say what was expected if a value is no integer from ``least`` to ``most``, else ``None``."""
    if not is_integer(value) or value < least:
        return f"an integer of at least {least}"
    return f"an integer of at most {most}" if value > most else None


def check_integer(name: str, value: Any, least: int = 1, most: int = MOST) -> None:
    """Check that a value is an integer from ``least`` to ``most``.

    Raises:
        ConfigError: it is not; the sentence begins with ``name``.
    """
    expected = expected_integer(value, least, most)
    if expected is not None:
        raise ConfigError(f"{name} is {shown(value)}, expected {expected}")


def is_number(value: Any) -> bool:
    """Check for a finite number, of Python's or numpy's, that is no truth value."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def check_value_rotation(stream_init: str, epsilon: Any, num_streams: int) -> None:
    """Check the angle of ``value_rotation``, which every other ``stream_init`` leaves at 0.

    Streams differ by their rotations alone, so stream 1 must turn, and the last one by less than a
    full turn: then all streams and the main stream differ.

    Args:
        stream_init: see ``StreamConfig``.
        epsilon: the angle in radians.
        num_streams: gamma.

    Raises:
        ConfigError: streams would be alike, or an angle is given that is not used.
    """
    name = "value_rotation_epsilon"
    if not is_number(epsilon):
        raise ConfigError(f"{name} is {shown(epsilon)}, expected a number")
    if stream_init != "value_rotation":
        if epsilon:
            raise ConfigError(
                f"{name} is {shown(epsilon)} with stream_init {shown(stream_init)}, expected 0: "
                "only 'value_rotation' turns"
            )
    elif not (0 < epsilon < 2 * math.pi / num_streams):
        raise ConfigError(
            f"{name} is {shown(epsilon)} with stream_init 'value_rotation', expected more than 0 "
            f"and less than 2 pi / num_streams = {2 * math.pi / num_streams:.4g} radians"
        )


@dataclass(frozen=True)
class StreamConfig:
    """The ``speculative_streaming`` object of an adapter directory.

    Args:
        mode: ``lossless`` (base frozen, the main stream never sees a stream) or ``shared``
            (LoRA shared by main stream and streams, Eq. 3).
        num_streams: gamma, the streams beside each position; stream j predicts ``y_{t+j}``.
        num_msa_layers: N_s, the top layers in which the streams run.
        hidden_size: width of the base model.
        num_hidden_layers: N, the layers of the base model.
        stream_init: ``identity`` or ``linear`` (rank eta) for ``f_eta`` of Eq. 4, or
            ``value_rotation``, which has no stream embeddings.
        stream_init_rank: eta; 0 unless ``stream_init`` is ``linear``.
        value_rotation_epsilon: angle in radians; stream j's values turn by ``epsilon * j``. 0
            unless ``stream_init`` is ``value_rotation``; see ``check_value_rotation``.
        stream_mlp: the streams' path where the main stream has its MLP: ``base`` (the MLP itself:
            shared mode), ``adapter`` (instead of it, App. H.2) or ``base+adapter`` (beside it, Fig.
            2a).
        stream_adapter_rank: rank of the stream adapters; 0 where ``stream_mlp`` is ``base``.
        stream_head: ``plain`` (the base's norm and head on each stream, as in the papers) or
            ``conditioned`` (on the token before too): stream j's features s, for a candidate u of
            the depth before, become ``n(s) + U silu(D [n(s); n(E(u))] + b_j)`` before norm and
            head, n an RMS norm without weights and E the base's embedding.
        stream_head_rank: rows of D; 0 with ``plain``.
        draft_vocabulary: number of tokens that the streams' head scores, the most frequent ones of
            the training text; 0: all. The target is not limited.
        stream_keys: number of main rows that a stream attends to in each MSA layer, those that its
            own main row weighs most (App. H.1, where they are 64); 0: all. The weights are the
            softmax of the main row's scores of the main rows that it sees, within the layer's
            sliding window, summed over the query heads. Rows with at least the
            ``stream_keys``-th largest weight are selected, for all heads of a layer alike. Streams
            still see the streams before them, and main rows see everything.
        pruner_rank: rank of the early-exit pruner's ``B A``; 0 for no pruner.
        pruner_form: ``residual`` = ``lm_head(norm(M + B A M))``, ``literal`` = ``lm_head(B A M)``.
        base_model: the base's name or path, for people.
        base_fingerprint: ``fingerprint.fingerprint`` of the base's ``config.json``.
        prompt_template: text with ``{text}`` where the user's raw text goes; it becomes the user's
            turn of the chat. ``None`` leaves the text as it is.
        version: version of this format.
    """

    mode: Mode
    num_msa_layers: int
    hidden_size: int
    num_hidden_layers: int
    num_streams: int = 4
    stream_init: str = "identity"
    stream_init_rank: int = 0
    value_rotation_epsilon: float = 0.0
    stream_mlp: str = "base"
    stream_adapter_rank: int = 0
    stream_head: str = "plain"
    stream_head_rank: int = 0
    draft_vocabulary: int = 0
    stream_keys: int = 0
    pruner_rank: int = 8
    pruner_form: str = "residual"
    base_model: str = ""
    base_fingerprint: str = ""
    prompt_template: str | None = None
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                found = shown(getattr(self, name))
                raise ConfigError(f"{name} is {found}, expected one of {allowed}")
        check_integer("num_streams", self.num_streams, most=MOST_STREAMS)
        check_integer("hidden_size", self.hidden_size)
        for name in ("num_msa_layers", "num_hidden_layers"):
            check_integer(name, getattr(self, name), most=MOST_LAYERS)
        for name in (
            *("stream_init_rank", "stream_adapter_rank", "stream_head_rank"),
            *("draft_vocabulary", "stream_keys", "pruner_rank"),
        ):
            check_integer(name, getattr(self, name), least=0)
        check_value_rotation(self.stream_init, self.value_rotation_epsilon, self.num_streams)
        for name in ("base_model", "base_fingerprint"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {shown(getattr(self, name))}, expected a text")
        template = self.prompt_template
        if template is not None and (not isinstance(template, str) or "{text}" not in template):
            found = shown(template)
            raise ConfigError(f"prompt_template is {found}, expected text with {{text}} in it")
        if self.version != FORMAT_VERSION or type(self.version) is not int:
            found = shown(self.version)
            raise ConfigError(f"version is {found}, this release reads {FORMAT_VERSION}")
        if self.num_msa_layers > self.num_hidden_layers:
            raise ConfigError(
                f"num_msa_layers is {self.num_msa_layers}, "
                f"expected at most num_hidden_layers = {self.num_hidden_layers}"
            )
        if (self.stream_init == "linear") != (self.stream_init_rank > 0):
            raise ConfigError(
                f"stream_init_rank is {self.stream_init_rank} with stream_init "
                f"{self.stream_init!r}, expected a rank with 'linear' and 0 otherwise"
            )
        if (self.stream_mlp != "base") != (self.stream_adapter_rank > 0):
            raise ConfigError(
                f"stream_adapter_rank is {self.stream_adapter_rank} with stream_mlp "
                f"{self.stream_mlp!r}, expected 0 with 'base' and a rank otherwise"
            )
        if (self.stream_head == "conditioned") != (self.stream_head_rank > 0):
            raise ConfigError(
                f"stream_head_rank is {self.stream_head_rank} with stream_head "
                f"{self.stream_head!r}, expected a rank with 'conditioned' and 0 otherwise"
            )

    @property
    def first_msa_layer(self) -> int:
        """Index of the layer at which the streams start, ``N - N_s``."""
        return self.num_hidden_layers - self.num_msa_layers

    def check_lora(self) -> None:
        """Check that LoRA may stand beside these streams; called if there is any.

        Raises:
            ConfigError: the mode is lossless.
        """
        if self.mode == "lossless":
            raise ConfigError(
                "mode is 'lossless' and there is LoRA beside the streams, expected none, since "
                "lossless text is the base's own: merge the LoRA into the base and train the "
                "streams on that, or train both in shared mode"
            )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every stream and pruner tensor of this configuration.

        Linear maps are stored ``(out, in)``. LoRA tensors are not listed.
        """
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
        """Make the JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StreamConfig":
        """Read the JSON object.

        Raises:
            ConfigError: a field is missing, unknown or out of range.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown field {shown(unknown[0])}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(str(error).split(") ")[-1]) from None
