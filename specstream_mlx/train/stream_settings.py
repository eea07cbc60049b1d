"""Settings of trained streams: their shape, the weights of their losses, the learning rates.

Both trainers share it, so nothing here needs MLX.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from ..errors import Mode, UserError, shown
from ..options import PATH, POSITIVE, TEXT, check_options, choice, kinds_of, number, option
from ..stream_config import FORMAT_VERSION, StreamConfig, check_value_rotation

SHAPE = (
    *("num_streams", "num_msa_layers", "stream_init", "stream_init_rank", "value_rotation_epsilon"),
    *("stream_mlp", "stream_adapter_rank", "stream_keys"),
    "pruner_rank",
)
"""Settings that streams cannot change once they are trained; the head is no part of it."""

INIT_RANK, ADAPTER_RANK, HEAD_RANK = 128, 8, 128
"""Ranks where none is asked for, see benchmarks/NOTES.md; at most hidden_size."""

_LORA_RATE = 5e-4
_STREAM_RATE, _STREAM_RATE_BY_WIDTH = 4e-3, 1.5
"""Of streams: 4e-3 was the best for a hidden_size of 384. For larger ones it is 1.5 over that size,
as muP (arXiv 2203.03466) lets Adam's rate of matrices fall."""


_KINDS = kinds_of(StreamConfig)


@dataclass(frozen=True)
class LearningRates:
    """The peaks of the learning rates: of LoRA, of streams and pruner, of the embeddings."""

    lora: float
    streams: float
    embeddings: float


def warm_up_updates(updates: int | None) -> int:
    """Return in how many updates of a run the rates rise; ``None``: a time limit ends it."""
    return 20 if updates is None else max(1, round(0.03 * updates))


class Resumable:
    """Settings of a run that may be continued: a dataclass."""

    FREE_TO_CHANGE: ClassVar[set[str]] = set()
    """What may differ between a run and its continuation."""

    def identity(self) -> dict[str, str]:
        """The settings that a run must share with the one that it continues, as text."""
        values = asdict(self)  # type: ignore[call-overload]
        return {k: str(v) for k, v in values.items() if k not in self.FREE_TO_CHANGE}


@dataclass(kw_only=True)
class StreamSettings(Resumable):
    """The settings of a run that say what is trained; ``StreamConfig`` says more of most.

    ``None`` for a rank that is used is ``INIT_RANK``, ``ADAPTER_RANK`` or ``HEAD_RANK``.
    """

    PANEL: ClassVar[str] = "Streams"

    mode: Mode = option(
        "lossless",
        _KINDS["mode"],
        "lossless: the base stays as it is, and so does LoRA of --init-adapter; shared: LoRA is "
        "trained too.",
    )
    num_streams: int = option(4, _KINDS["num_streams"], "Streams beside each position (gamma).")
    num_msa_layers: int = option(4, _KINDS["num_msa_layers"], "Top layers with streams (N_s).")
    stream_init: str = option(
        "linear",
        _KINDS["stream_init"],
        "How streams start: linear, identity or value_rotation.",
        metavar="KIND",
        hidden=True,
    )
    stream_init_rank: int | None = option(
        None,
        _KINDS["stream_init_rank"],
        "Rank of --stream-init linear (eta). Default: 128.",
        hidden=True,
    )
    value_rotation_epsilon: float = option(
        0.0,
        _KINDS["value_rotation_epsilon"],
        "Angle of --stream-init value_rotation in radians, more than 0 and less than 2 pi / "
        "--num-streams.",
        hidden=True,
    )
    stream_mlp: str | None = option(
        None,
        _KINDS["stream_mlp"],
        "The streams' MLP: base, adapter or base+adapter. Default: adapter in lossless, base in "
        "shared mode.",
        metavar="KIND",
        hidden=True,
    )
    stream_adapter_rank: int | None = option(
        None,
        _KINDS["stream_adapter_rank"],
        "Rank of the adapters of --stream-mlp. Default: 8.",
        hidden=True,
    )
    stream_head: str = option(
        "conditioned",
        _KINDS["stream_head"],
        "The streams' head: conditioned on the token before the predicted one, or plain.",
    )
    stream_head_rank: int | None = option(
        None,
        _KINDS["stream_head_rank"],
        "Rank of --stream-head conditioned. Default: 128.",
        hidden=True,
    )
    draft_vocabulary: int = option(
        0,
        _KINDS["draft_vocabulary"],
        "Tokens that the streams may draft, the most frequent ones of the completions: their head "
        "is that much smaller. 0: all.",
    )
    stream_keys: int = option(
        0,
        _KINDS["stream_keys"],
        "Keys of the main stream that a stream attends to, those that its main row weighs most; "
        "the papers take 64. 0: all.",
        hidden=True,
    )
    pruner_rank: int = option(
        8, _KINDS["pruner_rank"], "Rank of the pruner; 0 trains none.", hidden=True
    )
    alpha_main: float | None = option(
        None,
        number(0),
        "Weight of the main stream's loss. Default: 0 in lossless, 1 in shared.",
        hidden=True,
    )
    alpha_streams: float | None = option(
        None,
        number(0),
        "Weight of each stream's loss. Default: 1 in lossless, 0.1 in shared.",
        hidden=True,
    )
    init_adapter: Path | None = option(
        None,
        PATH,
        "Adapter directory of the same shape whose weights the run starts from; a conditioned head "
        "may be new. In lossless mode its LoRA stays as it is, and the streams may be new.",
        metavar="DIR",
    )
    train: str = option(
        "all",
        choice("all", "head"),
        "all, or head: the conditioned head alone, on the streams of --init-adapter.",
    )
    prompt_template: str | None = option(
        None,
        TEXT,
        "Text around every prompt, with {text} in its place; kept in the adapter.",
        metavar="TEXT",
        panel="Model and data",
    )
    learning_rate: float | None = option(
        None,
        POSITIVE,
        "Peak of the learning rate. Default: 5e-4 for LoRA, and for streams 4e-3, less where "
        "hidden_size is above 384.",
        panel="Optimization",
    )
    stream_learning_rate: float | None = option(
        None,
        POSITIVE,
        "Learning rate of streams and pruner. Default: --learning-rate.",
        panel="Optimization",
    )
    embedding_learning_rate: float | None = option(
        None,
        POSITIVE,
        "Learning rate of the stream embeddings. Default: --stream-learning-rate.",
        panel="Optimization",
    )
    max_grad_norm: float = option(
        1.0, POSITIVE, "Norm that gradients are clipped to.", hidden=True, panel="Optimization"
    )

    def check_streams(self) -> None:
        """Check every option, and what is said of the streams; ``StreamConfig`` checks the rest.

        Raises:
            UserError: a setting is out of range, or two exclude each other.
        """
        check_options(self)
        if self.train == "head":
            self._check_head_alone()
        check_value_rotation(self.stream_init, self.value_rotation_epsilon, self.num_streams)
        if not any(self.alphas(1)):
            raise UserError(
                f"alpha_streams is {shown(self.alpha_streams)} and the main stream's weight 0, "
                "expected one above 0: there is nothing to learn"
            )

    @property
    def may_add_streams(self) -> bool:
        """Whether ``init_adapter`` may be LoRA alone, which then gets its first streams."""
        return self.mode == "lossless" and self.train == "all"

    def _check_head_alone(self) -> None:
        if self.stream_head != "conditioned":
            raise UserError(
                f"train is 'head' with stream_head {shown(self.stream_head)}, expected "
                "'conditioned': no other head is trained"
            )
        if self.init_adapter is None:
            raise UserError(
                "train is 'head' without init_adapter, expected the adapter whose streams the head "
                "is trained on"
            )
        if self.alpha_main:
            raise UserError(
                f"alpha_main is {shown(self.alpha_main)} with train 'head', expected none: the "
                "main stream stays as it is"
            )

    def alphas(self, num_streams: int) -> list[float]:
        """The weights of Eq. 6, the main stream's first.

        Args:
            num_streams: gamma, which may be that of ``init_adapter``.
        """
        alphas = default_alphas(self.mode, num_streams)
        if self.alpha_main is not None:
            alphas[0] = self.alpha_main
        if self.train == "head":
            alphas[0] = 0.0  # nothing that the main stream passes through
        if self.alpha_streams is not None:
            alphas[1:] = [self.alpha_streams] * num_streams
        return alphas

    def learning_rates(self, hidden_size: int) -> LearningRates:
        """The peaks of the learning rates on a base with such hidden states."""
        new = min(_STREAM_RATE, _STREAM_RATE_BY_WIDTH / hidden_size)
        streams = self.stream_learning_rate or self.learning_rate or new
        return LearningRates(
            self.learning_rate or _LORA_RATE, streams, self.embedding_learning_rate or streams
        )

    def head_fields(self, hidden_size: int) -> dict[str, Any]:
        """The fields of ``StreamConfig`` that are the head's."""
        used = self.stream_head == "conditioned"
        return {
            "stream_head": self.stream_head,
            "stream_head_rank": _rank(self.stream_head_rank, HEAD_RANK, hidden_size, used),
            "draft_vocabulary": self.draft_vocabulary,
        }

    def stream_config(
        self,
        *,
        hidden_size: int,
        num_hidden_layers: int,
        base_model: str,
        base_fingerprint: str,
    ) -> StreamConfig:
        """The configuration of the streams on a base.

        Args:
            hidden_size, num_hidden_layers, base_model, base_fingerprint: see ``StreamConfig``.

        Raises:
            UserError: a setting is out of range, or does not fit the base.
        """
        stream_mlp = self.stream_mlp or ("base" if self.mode == "shared" else "adapter")
        adapts, maps = stream_mlp != "base", self.stream_init == "linear"
        adapter_rank = _rank(self.stream_adapter_rank, ADAPTER_RANK, hidden_size, adapts)
        values: dict[str, Any] = {f.name: getattr(self, f.name, None) for f in fields(StreamConfig)}
        values |= {
            "hidden_size": hidden_size,
            "num_hidden_layers": num_hidden_layers,
            "stream_init_rank": _rank(self.stream_init_rank, INIT_RANK, hidden_size, maps),
            "stream_mlp": stream_mlp,
            "stream_adapter_rank": adapter_rank,
            "base_model": base_model,
            "base_fingerprint": base_fingerprint,
            "version": FORMAT_VERSION,
        }
        return StreamConfig(**values | self.head_fields(hidden_size))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check that a base has as many tokens as the streams may draft.

        Raises:
            UserError: it has fewer.
        """
        if self.draft_vocabulary > vocab_size:
            raise UserError(
                f"draft_vocabulary is {self.draft_vocabulary}, expected at most the base's "
                f"{vocab_size}"
            )


def check_identity(path: Path, found: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    """Check that a checkpoint is of a run with the same settings.

    Args:
        path: the checkpoint, for the error.
        found: the settings that it was made with.
        expected: the run's, see ``Resumable.identity``.

    Raises:
        UserError: one differs.
    """
    for name, value in expected.items():
        if (before := found.get(name)) != value:
            raise UserError(
                f"{path}: {name} was {shown(before)}, expected {shown(value)} as in this run; a "
                "run is resumed with the settings that it began with"
            )


def _rank(asked: int | None, usual: int, hidden_size: int, used: bool) -> int:
    """The rank that is asked for, or else the usual one where a map is used at all."""
    if asked is not None:
        return asked
    return min(usual, hidden_size) if used else 0


def default_alphas(mode: str, num_streams: int) -> list[float]:
    """The weights of Eq. 6, the main stream's first, then the same for each of the streams.

    They are 1 and 0.1 in shared mode, 0 and 1 in lossless mode, where the base does not train.
    """
    main, stream = (1.0, 0.1) if mode == "shared" else (0.0, 1.0)
    return [main] + [stream] * num_streams
