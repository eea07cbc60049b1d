"""What a run trains: the streams' shape, the weights of their losses and the learning rates.

Both trainers share it, so nothing here needs MLX.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import (
    StreamConfig,
    UserError,
    check_integer,
    check_value_rotation,
    is_number,
    shown,
)

SHAPE = (
    *("num_streams", "num_msa_layers", "stream_init", "stream_init_rank", "value_rotation_epsilon"),
    *("stream_mlp", "stream_adapter_rank", "stream_keys", "pruner_rank", "pruner_form"),
)
"""Settings that streams cannot change once they are trained; the head is no part of it."""

INIT_RANK, ADAPTER_RANK, HEAD_RANK = 128, 8, 128
"""Ranks where none is asked for, see benchmarks/NOTES.md; at most hidden_size."""

_LORA_RATE = 5e-4
_STREAM_RATE, _STREAM_RATE_BY_WIDTH = 4e-3, 1.5
"""Of streams: 4e-3 was the best for a hidden_size of 384. For larger ones it is 1.5 over that size,
as muP (arXiv 2203.03466) lets Adam's rate of matrices fall."""


@dataclass(frozen=True)
class LearningRates:
    """The peaks of the learning rates: of LoRA, of streams and pruner, of the embeddings."""

    lora: float
    streams: float
    embeddings: float


@dataclass(kw_only=True)
class StreamSettings:
    """The settings of a run that say what is trained.

    Args:
        mode: ``lossless`` or ``shared``.
        train: ``all``, or ``head`` for the conditioned head alone, on the frozen streams (and LoRA)
            of ``init_adapter``.
        init_adapter: adapter directory of the same shape whose weights the run starts from. A
            conditioned head may be new: it then starts without effect.
        prompt_template: text with ``{text}`` where a prompt goes; stored with the adapter.
        num_streams, num_msa_layers, stream_init, stream_init_rank, value_rotation_epsilon,
        stream_mlp, stream_adapter_rank, stream_head, stream_head_rank, pruner_rank, pruner_form:
            see ``StreamConfig``. ``None`` for ``stream_mlp`` is ``adapter`` in lossless and
            ``base`` in shared mode, where there is LoRA; for a rank that is used it is
            ``INIT_RANK``, ``ADAPTER_RANK`` or ``HEAD_RANK``.
        draft_vocabulary: tokens that streams may draft, the most frequent ones of the completions;
            0: all.
        stream_keys: see ``StreamConfig``; 0: all keys.
        alpha_main: weight of the main stream's loss in Eq. 6; ``None``: 0 in lossless, 1 in
            shared mode.
        alpha_streams: weight of each stream's loss; ``None``: 1 in lossless, 0.1 in shared mode.
        learning_rate: of all that is trained, unless streams or embeddings have their own;
            ``None``: one for LoRA and one for streams, which are new, see ``learning_rates``.
        stream_learning_rate: of streams and pruner.
        embedding_learning_rate: of the streams' embeddings; ``None``: that of streams.
    """

    mode: str = "lossless"
    train: str = "all"
    init_adapter: Path | None = None
    prompt_template: str | None = None
    num_streams: int = 4
    num_msa_layers: int = 4
    stream_init: str = "linear"
    stream_init_rank: int | None = None
    value_rotation_epsilon: float = 0.0
    stream_mlp: str | None = None
    stream_adapter_rank: int | None = None
    stream_head: str = "conditioned"
    stream_head_rank: int | None = None
    draft_vocabulary: int = 0
    stream_keys: int = 0
    pruner_rank: int = 8
    pruner_form: str = "residual"
    alpha_main: float | None = None
    alpha_streams: float | None = None
    learning_rate: float | None = None
    stream_learning_rate: float | None = None
    embedding_learning_rate: float | None = None

    def check_streams(self) -> None:
        """Check what is said of the streams; ``StreamConfig`` checks the rest.

        Raises:
            UserError: a setting is out of range, or two exclude each other.
        """
        if self.mode not in ("lossless", "shared"):
            raise UserError(f"mode is {self.mode!r}, expected 'lossless' or 'shared'")
        if self.train not in ("all", "head"):
            raise UserError(f"train is {shown(self.train)}, expected 'all' or 'head'")
        if self.train == "head":
            self._check_head_alone()
        for name in ("learning_rate", "stream_learning_rate", "embedding_learning_rate"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise UserError(f"{name} is {shown(value)}, expected more than 0")
        for name in ("alpha_main", "alpha_streams"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise UserError(f"{name} is {shown(value)}, expected a number of at least 0")
        check_integer("num_streams", self.num_streams)
        check_integer("draft_vocabulary", self.draft_vocabulary, least=0)
        check_integer("stream_keys", self.stream_keys, least=0)
        check_value_rotation(self.stream_init, self.value_rotation_epsilon, self.num_streams)
        if not any(self.alphas(1)):
            raise UserError(
                f"alpha_streams is {shown(self.alpha_streams)} and the main stream's weight 0, "
                "expected one above 0: there is nothing to learn"
            )

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
        self, *, hidden_size: int, num_hidden_layers: int, base_model: str, base_fingerprint: str
    ) -> StreamConfig:
        """The configuration of the streams on a base.

        Raises:
            ConfigError: a setting is out of range, or does not fit the base.
        """
        stream_mlp = self.stream_mlp or ("base" if self.mode == "shared" else "adapter")
        adapts, maps = stream_mlp != "base", self.stream_init == "linear"
        adapter_rank = _rank(self.stream_adapter_rank, ADAPTER_RANK, hidden_size, adapts)
        init_rank = _rank(self.stream_init_rank, INIT_RANK, hidden_size, maps)
        return StreamConfig(
            mode=self.mode,
            num_msa_layers=self.num_msa_layers,
            hidden_size=hidden_size,
            num_hidden_layers=num_hidden_layers,
            num_streams=self.num_streams,
            stream_init=self.stream_init,
            stream_init_rank=init_rank,
            value_rotation_epsilon=self.value_rotation_epsilon,
            stream_mlp=stream_mlp,
            stream_adapter_rank=adapter_rank,
            stream_keys=self.stream_keys,
            pruner_rank=self.pruner_rank,
            pruner_form=self.pruner_form,
            base_model=base_model,
            base_fingerprint=base_fingerprint,
            prompt_template=self.prompt_template,
            **self.head_fields(hidden_size),
        )

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
