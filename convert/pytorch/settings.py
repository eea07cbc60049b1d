"""What a training run does: its settings, and which of them go together."""

from dataclasses import asdict, dataclass
from pathlib import Path

from specstream_mlx.config import UserError

# What may differ between a run and its continuation.
_FREE_TO_CHANGE = {"output", "valid_data", "time_limit", "log_every", "save_every", "resume"}


class SettingsError(UserError):
    """Settings that do not go together; the message is one sentence."""


@dataclass
class TrainSettings:
    """What to train; ``None`` stands for the default of the mode.

    Args:
        model: Hugging Face directory of the base.
        data: JSONL of ``{"prompt": ..., "completion": ...}``.
        output: directory for ``adapter``, ``log.jsonl`` and ``checkpoint.pt``.
        valid_data: held-out JSONL, for the streams' accuracy at the end.
        init_adapter: adapter directory of the same shape whose weights the run starts from.
        prompt_template: text with ``{text}`` where the prompt goes; stored with the adapter.
        mode: ``lossless`` or ``shared``.
        num_streams, num_msa_layers, stream_init, stream_init_rank, value_rotation_epsilon,
        stream_mlp, stream_adapter_rank, pruner_rank, pruner_form: see ``StreamConfig``.
        alpha_main, alpha_streams: weights of Eq. 6; 1 and 0.1 in shared, 0 and 1 in lossless mode.
        lora_rank, lora_alpha: shared mode; 8, and twice the rank.
        lora_layers: top layers with LoRA; all.
        lora_targets: names of the linear layers with LoRA; all of them.
        learning_rate: of AdamW, after a warm-up; it falls to 0 linearly.
        embedding_learning_rate: of the stream embeddings alone, which must grow to the size of the
            hidden state they are added to; the same as ``stream_learning_rate``.
        stream_learning_rate: of streams and pruner, new weights that may move faster than LoRA on
            a trained base; the same as ``learning_rate``.
        weight_decay: of AdamW.
        max_grad_norm: gradients are clipped to it.
        batch_size: sequences per step.
        iters, epochs: length of the run; one epoch if neither is given.
        time_limit: minutes after which the run ends, the schedule fitted to it.
        max_seq_length: longer items are left out.
        segments: pieces in which streams are computed, to save memory.
        bf16: bf16 autocast.
        seed: of weights and order.
        log_every, save_every: steps between log lines and checkpoints.
        resume: continue from ``output/checkpoint.pt``.
    """

    model: Path
    data: Path
    output: Path
    valid_data: Path | None = None
    init_adapter: Path | None = None
    prompt_template: str | None = None
    mode: str = "lossless"
    num_streams: int = 4
    num_msa_layers: int = 4
    stream_init: str = "identity"
    stream_init_rank: int | None = None
    value_rotation_epsilon: float = 0.0
    stream_mlp: str | None = None
    stream_adapter_rank: int | None = None
    pruner_rank: int = 8
    pruner_form: str = "residual"
    alpha_main: float | None = None
    alpha_streams: float | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_layers: int | None = None
    lora_targets: tuple[str, ...] | None = None
    learning_rate: float = 5e-4
    stream_learning_rate: float | None = None
    embedding_learning_rate: float | None = None
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    batch_size: int = 32
    iters: int | None = None
    epochs: float | None = None
    time_limit: float | None = None
    max_seq_length: int = 1024
    segments: int = 1
    bf16: bool = True
    seed: int = 0
    log_every: int = 10
    save_every: int = 200
    resume: bool = False

    def check(self) -> None:
        """Raise ``SettingsError`` for settings out of range or in conflict."""
        if self.mode not in ("lossless", "shared"):
            raise SettingsError(f"mode is {self.mode!r}, expected 'lossless' or 'shared'")
        if self.mode == "lossless":
            for name in ("lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
                if getattr(self, name) is not None:
                    raise SettingsError(f"{name} is for shared mode: lossless keeps the base as is")
        for name in (
            *("lora_rank", "lora_alpha", "lora_layers", "learning_rate", "max_grad_norm"),
            *("stream_learning_rate", "embedding_learning_rate"),
            *("batch_size", "iters", "epochs", "time_limit", "max_seq_length", "segments"),
            *("log_every", "save_every"),
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(f"{name} is {value}, expected more than 0")
        if self.iters and self.epochs:
            raise SettingsError("iters and epochs exclude each other")

    def identity(self) -> dict[str, str]:
        """The settings that a run must share with the run it continues, as text."""
        return {k: str(v) for k, v in asdict(self).items() if k not in _FREE_TO_CHANGE}
