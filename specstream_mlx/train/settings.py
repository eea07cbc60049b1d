"""Settings of training: those that both trainers know, and those of the trainer in MLX."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..errors import MOST, Mode, UserError, is_integer, is_number, shown
from ..options import (
    COUNT,
    DIRECTORY,
    FIELDS,
    FLAG,
    MODEL,
    POSITIVE,
    TEXT,
    check_options,
    choice,
    integer,
    kinds_of,
    option,
    what,
)
from ..stream_config import FORMAT_VERSION, StreamConfig, check_value_rotation

_SHAPE = (
    *("num_streams", "num_msa_layers", "stream_init", "stream_init_rank", "value_rotation_epsilon"),
    *("stream_mlp", "stream_adapter_rank", "stream_keys", "pruner_rank"),
)
"""Settings that trained streams cannot change; the head's are not among them."""


_DATA, _OPTIMIZATION = "Model and data", "Optimization"
_REPORTS = "Reports, validation, checkpoints"
_KINDS = kinds_of(StreamConfig)
_hidden = partial(option, hidden=True)
_rate = partial(option, None, POSITIVE, panel=_OPTIMIZATION)


def _is_lora(value: Any) -> bool:
    match value:
        case {"rank": rank, "scale": scale, "dropout": dropout, **more}:
            keys = more.pop("keys", [])
            right = is_integer(rank) and 0 < rank <= MOST and is_number(scale) and scale >= 0
            right = right and is_number(dropout) and 0 <= dropout < 1 and not more
            return right and isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    return False


_LORA = what(
    "rank (at least 1), scale (at least 0), dropout (0 to below 1) and maybe keys, a list of names",
    _is_lora,
)


class LearningRates(NamedTuple):
    """The peaks of the learning rates: of LoRA, of streams and pruner, of the embeddings."""

    lora: float
    streams: float
    embeddings: float


def default_alphas(mode: str, num_streams: int) -> list[float]:
    """Weights of Eq. 6, the main stream's first: in lossless mode the base does not train."""
    main, stream = (1.0, 0.1) if mode == "shared" else (0.0, 1.0)
    return [main] + [stream] * num_streams


def stream_losses(loss: str, entropies: Any) -> Any:
    """The losses (n, gamma) of streams at n positions, of cross entropies (n, gamma).

    They are arrays of MLX or PyTorch; the cross entropy is infinite where there is no target.
    ``acceptance`` is minus the chance that a chain drawn from the streams is right up to this one.
    Over the streams it adds up to minus the draft tokens expected to be accepted, and it is total
    variation: greedily written text gives its own token all of the target's probability.
    """
    if loss == "cross_entropy":
        return entropies
    acceptance = -(-entropies.cumsum(1)).exp()
    return acceptance if loss == "acceptance" else entropies + acceptance / 2


def identity(settings: Any) -> dict[str, str]:
    """The settings, as text, that must be the same when a run is resumed."""
    values = asdict(settings).items()
    return {name: str(value) for name, value in values if name not in settings.FREE_TO_CHANGE}


def check_identity(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that what a file holds was made with these settings, so that it may go on."""
    changes = [
        f"{name} was {shown(found.get(name))} and is now {shown(value)}"
        for name, value in expected.items()
        if found.get(name) != value
    ]
    if changes:
        raise UserError(
            f"{path}: {', '.join(changes)}: go on with what was, write elsewhere, or remove "
            f"{path.parent} to begin anew"
        )


@dataclass(kw_only=True)
class StreamSettings:
    """What is trained, for both trainers; ``StreamConfig`` says more of most."""

    PANEL: ClassVar[str] = "Streams"

    mode: Mode = option(
        "lossless",
        _KINDS["mode"],
        "lossless: the base stays as it is, and so does LoRA of --init-adapter; shared: LoRA is "
        "trained too.",
    )
    num_streams: int = option(4, _KINDS["num_streams"], "Streams of each position (gamma).")
    num_msa_layers: int = option(4, _KINDS["num_msa_layers"], "Top layers with streams (N_s).")
    stream_init: str = _hidden("linear", _KINDS["stream_init"], "How streams start.")
    stream_init_rank: int | None = _hidden(
        None, _KINDS["stream_init_rank"], "Rank of --stream-init linear (eta). Default: 128."
    )
    value_rotation_epsilon: float = _hidden(
        0.0, _KINDS["value_rotation_epsilon"], "Radians of --stream-init value_rotation."
    )
    stream_mlp: str | None = _hidden(
        None,
        _KINDS["stream_mlp"],
        "The streams' MLP. Default: base+adapter in lossless, base in shared mode.",
    )
    stream_adapter_rank: int | None = _hidden(
        None, _KINDS["stream_adapter_rank"], "Rank of the adapters of --stream-mlp. Default: 8."
    )
    stream_head: str = option(
        "conditioned",
        _KINDS["stream_head"],
        "The streams' head: conditioned on the token before the predicted one, or plain.",
    )
    stream_head_rank: int | None = _hidden(
        None, _KINDS["stream_head_rank"], "Rank of --stream-head conditioned. Default: 128."
    )
    draft_vocabulary: int = option(
        0,
        _KINDS["draft_vocabulary"],
        "Tokens that the streams may draft, the most frequent ones of the completions: their head "
        "is that much smaller. 0: all.",
    )
    stream_keys: int = _hidden(
        0, _KINDS["stream_keys"], "Keys of the main stream that a stream attends to. 0: all."
    )
    pruner_rank: int = _hidden(8, _KINDS["pruner_rank"], "Rank of the pruner; 0 trains none.")
    init_adapter: Path | None = option(
        None,
        DIRECTORY,
        "Start from this adapter's weights, and its shape. In lossless mode its LoRA stays as it "
        "is, and it may have no streams yet.",
    )
    prompt_template: str | None = option(
        None,
        TEXT,
        "Text around every prompt, with {text} in its place; kept in the adapter.",
        panel=_DATA,
    )
    learning_rate: float | None = _rate(
        "Peak of the learning rate. Default: 5e-4 for LoRA, and for streams 4e-3, less where "
        "hidden_size is above 384."
    )
    stream_learning_rate: float | None = _rate(
        "Learning rate of streams and pruner. Default: --learning-rate."
    )
    embedding_learning_rate: float | None = _rate(
        "Learning rate of the stream embeddings. Default: --stream-learning-rate."
    )
    loss: str = option(
        "cross_entropy",
        choice("cross_entropy", "acceptance", "half"),
        "The streams' loss: cross_entropy; acceptance, minus the draft tokens that are expected to "
        "be accepted, for streams that are trained already; half of that beside cross entropy.",
        panel=_OPTIMIZATION,
    )
    replay: bool = option(
        False,
        FLAG,
        "Before each update, replay drafts of the streams as they are, and train those positions "
        "where a draft ended and the next one begins, and every tenth other one. Lossless mode.",
        panel=_OPTIMIZATION,
    )
    max_grad_norm: float = _hidden(
        1.0, POSITIVE, "Norm that gradients are clipped to.", panel=_OPTIMIZATION
    )

    def check_streams(self) -> None:
        """Check every option."""
        check_options(self)
        if self.replay and self.mode == "shared":
            raise UserError(
                "replay is on in shared mode, expected lossless mode: the main stream sees the "
                "streams of all positions"
            )
        check_value_rotation(self.stream_init, self.value_rotation_epsilon, self.num_streams)

    def learning_rates(self, hidden_size: int) -> LearningRates:
        """Peaks of the learning rates on a base with such hidden states.

        Streams' 4e-3 was the best for a ``hidden_size`` of 384. For larger ones it falls with that
        size, as muP (arXiv 2203.03466) lets Adam's rate of matrices fall.
        """
        lora, new = self.learning_rate or 5e-4, min(4e-3, 1.5 / hidden_size)
        streams = self.stream_learning_rate or self.learning_rate or new
        return LearningRates(lora, streams, self.embedding_learning_rate or streams)

    def _ranks(self, hidden_size: int, **defaults: int) -> dict[str, int]:
        """The ranks that are set, or else these defaults; benchmarks/NOTES.md says why."""
        values = {name: min(default, hidden_size) for name, default in defaults.items()}
        return values | {n: rank for n in defaults if (rank := getattr(self, n)) is not None}

    def _head_fields(self, hidden_size: int) -> dict[str, Any]:
        """The fields of ``StreamConfig`` that are the head's."""
        rank = 128 if self.stream_head == "conditioned" else 0
        values = {"stream_head": self.stream_head, "draft_vocabulary": self.draft_vocabulary}
        return values | self._ranks(hidden_size, stream_head_rank=rank)

    def stream_config(
        self, *, hidden_size: int, num_hidden_layers: int, base_model: str, base_fingerprint: str
    ) -> StreamConfig:
        """The configuration of new streams on a base, which these arguments describe."""
        if self.init_adapter is not None and self.mode == "shared":
            raise UserError(f"init_adapter {self.init_adapter} has no streams, expected some")
        stream_mlp = self.stream_mlp or ("base" if self.mode == "shared" else "base+adapter")
        values: dict[str, Any] = {f.name: getattr(self, f.name, None) for f in fields(StreamConfig)}
        values |= self._head_fields(hidden_size)
        values |= self._ranks(
            hidden_size,
            stream_init_rank=128 if self.stream_init == "linear" else 0,
            stream_adapter_rank=0 if stream_mlp == "base" else 8,
        )
        values |= {
            "hidden_size": hidden_size,
            "num_hidden_layers": num_hidden_layers,
            "stream_mlp": stream_mlp,
            "base_model": base_model,
            "base_fingerprint": base_fingerprint,
            "version": FORMAT_VERSION,
        }
        return StreamConfig(**values)

    def continued(self, initial: StreamConfig) -> StreamConfig:
        """The configuration of ``init_adapter``'s streams, whose plain head may become another."""
        conditioned, where = initial.stream_head == "conditioned", self.init_adapter
        for name in ("mode", "stream_head") if conditioned else ("mode",):
            if (found := getattr(initial, name)) != (chosen := getattr(self, name)):
                raise UserError(
                    f"init_adapter {where}: {name} is {found!r}, expected {chosen!r} as in this run"
                )
        for name in sorted({*_SHAPE, "stream_head_rank"} if conditioned else _SHAPE):
            chosen, has = getattr(self, name), getattr(initial, name)
            if chosen not in (has, StreamSettings.__dataclass_fields__[name].default):
                raise UserError(
                    f"{name} is {shown(chosen)}, expected none: init_adapter {where} has "
                    f"{shown(has)}"
                )
        values = {} if conditioned else self._head_fields(initial.hidden_size)
        values["draft_vocabulary"] = self.draft_vocabulary or initial.draft_vocabulary
        values["prompt_template"] = self.prompt_template or initial.prompt_template
        return replace(initial, **values)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check that a base has as many tokens as the streams may draft."""
        if (size := self.draft_vocabulary) > vocab_size:
            raise UserError(f"draft_vocabulary is {size}, expected at most the base's {vocab_size}")


@dataclass(kw_only=True)
class TrainSettings(StreamSettings):
    """Settings of a run in MLX. Names and defaults are mlx_lm's where it has them."""

    PANEL: ClassVar[str] = _OPTIMIZATION
    FREE_TO_CHANGE: ClassVar[set[str]] = {
        *("adapter_path", "val_batches", "steps_per_report", "steps_per_eval", "save_every"),
        *("patience", "clear_cache_threshold", "resume", "data"),
    }

    model: str = option(..., MODEL, "The base, quantized as it is deployed.", panel=_DATA)
    data: str | None = option(
        None,
        replace(TEXT, metavar="DIR"),
        "train.jsonl and valid.jsonl in one of mlx_lm's formats. Without it, the base answers "
        "prompts and its streams learn from that.",
        panel=_DATA,
    )
    adapter_path: Path = option(
        Path("adapters"),
        DIRECTORY,
        "Where the adapter goes; checkpoints and log go to DIR.training.",
        panel=_DATA,
    )
    max_seq_length: int = option(2048, integer(2), "Longer sequences are left out.", panel=_DATA)
    iters: int = option(1000, integer(1), "Iterations.")
    batch_size: int = option(4, integer(1), "Sequences in an iteration.")
    grad_accumulation_steps: int = option(1, integer(1), "Iterations of an update.")
    optimizer: str = option("adamw", choice("adam", "adamw", "muon", "sgd", "adafactor"))
    optimizer_config: dict[str, dict[str, Any]] = option(
        dict, FIELDS, "Further arguments, by optimizer.", hidden=True
    )
    num_layers: int = option(
        -1, integer(-1), "Top layers with LoRA, in shared mode; -1 (default): all."
    )
    lora_parameters: dict[str, Any] = option(
        lambda: {"rank": 8, "dropout": 0.0, "scale": 2.0},
        _LORA,
        "mlx_lm's rank, scale, dropout and keys, in shared mode.",
        hidden=True,
    )
    grad_checkpoint: bool = option(False, FLAG, "Less memory, for more time.")
    clear_cache_threshold: int = _hidden(
        0, integer(0), "Bytes of MLX's cache above which it is cleared."
    )
    seed: int = option(0, integer(0, 2**32 - 1))
    steps_per_report: int = option(10, integer(1), panel=_REPORTS)
    steps_per_eval: int = option(200, integer(1), panel=_REPORTS)
    val_batches: int = option(25, integer(-1), "-1: all.", panel=_REPORTS)
    patience: int = option(
        5,
        integer(0),
        "Validations without a longer accepted length after which the run ends; 0: never.",
        panel=_REPORTS,
    )
    save_every: int = option(100, integer(1), "Iterations between checkpoints.", panel=_REPORTS)
    resume: bool = option(False, FLAG, "Go on from the last checkpoint.", panel=_REPORTS)

    def check(self) -> None:
        """Check all that can be checked without reading a file."""
        self.check_streams()
        if self.replay and self.grad_accumulation_steps > 1:
            raise UserError(
                f"grad_accumulation_steps is {self.grad_accumulation_steps} with replay, expected "
                "1: how many positions an update has is known when its drafts are replayed"
            )
        for name in ("model", "data"):
            if getattr(self, name) == "":
                raise UserError(f"{name} is empty, expected a directory")
        if not self.adapter_path.name:  # the run's directory stands next to it and has its name
            raise UserError(f"adapter_path is {self.adapter_path}, expected a new directory")
        if self.num_layers != -1:
            COUNT.check("num_layers", self.num_layers)
            if self.mode == "lossless":
                raise UserError(
                    f"num_layers is {self.num_layers} in lossless mode, expected none: it is the "
                    "number of layers with LoRA, in shared mode"
                )
        if self.mode == "shared" and self.data is None:
            raise UserError("mode is 'shared' without --data, expected one with train.jsonl")
