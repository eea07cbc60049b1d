"""The settings of a training run, and which of them go together."""

from dataclasses import asdict, dataclass
from pathlib import Path

from specstream_mlx.config import UserError, check_integer, is_number, shown
from specstream_mlx.train.stream_settings import StreamSettings

_FREE_TO_CHANGE = {
    *("output", "valid_data", "time_limit", "log_every", "save_every", "keep_hidden", "resume")
}
"""What may differ between a run and its continuation."""


@dataclass
class TrainSettings(StreamSettings):
    """The settings of a training run: what to train, on which data, and for how long.

    What is said of the streams stands at ``StreamSettings``.

    Args:
        model: directory of the base, Hugging Face's or quantized by MLX.
        data: JSONL of ``{"prompt": ..., "completion": ...}``.
        output: directory that ``adapter``, ``log.jsonl`` and ``checkpoint.pt`` are written to.
        valid_data: held-out JSONL on which the streams' accuracy is measured at the end.
        lora_rank: rank of LoRA, in shared mode only; ``None``: 8.
        lora_alpha: PEFT's alpha, in shared mode only; ``None``: twice the rank.
        lora_layers: number of top layers with LoRA, in shared mode only; ``None``: all.
        lora_targets: names of the linear layers with LoRA, in shared mode only; ``None``: all.
        weight_decay: AdamW's.
        max_grad_norm: norm that gradients are clipped to.
        batch_size: sequences per step.
        iters: steps of the run; ``None``: as many as ``epochs`` or ``time_limit`` ask for.
        epochs: passes over the data; ``None``: one, if neither ``iters`` nor ``time_limit`` is
            given.
        time_limit: minutes after which the run ends; the learning rate falls accordingly.
        max_seq_length: tokens; longer items are left out.
        segments: pieces in which a completion's streams are computed, to save memory.
        keep_hidden: keep the base's hidden states below the streams from one epoch to the next, in
            lossless mode only: 4 bytes times the hidden size for every token of the data.
        bf16: compute in bfloat16 by autocast; ``None``: where that is quicker, and with a ``dtype``
            of ``bfloat16``.
        dtype: what the base's linear layers are held in, ``float32`` or, unless ``bf16`` is off,
            ``bfloat16``.
        seed: seed of the new weights and of the order of the data.
        log_every: steps between log lines.
        save_every: steps between checkpoints.
        resume: continue from ``output/checkpoint.pt``.
    """

    model: Path
    data: Path
    output: Path
    valid_data: Path | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_layers: int | None = None
    lora_targets: tuple[str, ...] | None = None
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    batch_size: int = 32
    iters: int | None = None
    epochs: float | None = None
    time_limit: float | None = None
    max_seq_length: int = 1024
    segments: int = 1
    keep_hidden: bool = False
    bf16: bool | None = None
    dtype: str = "float32"
    seed: int = 0
    log_every: int = 10
    save_every: int = 200
    resume: bool = False

    def check(self) -> None:
        """Check all that can be checked without reading a file.

        Raises:
            UserError: a setting is out of range, or two exclude each other.
        """
        self.check_streams()
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"dtype is {shown(self.dtype)}, expected 'float32' or 'bfloat16'")
        if self.dtype == "bfloat16" and self.bf16 is False:
            raise UserError(
                "dtype is 'bfloat16' and bf16 is off, expected float32 where that is computed in"
            )
        if self.mode == "lossless":
            for name in ("lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name} is for shared mode, lossless mode trains no LoRA")
        elif self.keep_hidden:
            raise UserError("keep_hidden is for lossless mode, in shared mode the base changes")
        for name in (
            *("lora_rank", "lora_alpha", "lora_layers", "max_grad_norm"),
            *("batch_size", "iters", "epochs", "time_limit", "max_seq_length", "segments"),
            *("log_every", "save_every"),
        ):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise UserError(f"{name} is {shown(value)}, expected more than 0")
        if not (is_number(self.weight_decay) and self.weight_decay >= 0):
            found = shown(self.weight_decay)
            raise UserError(f"weight_decay is {found}, expected a number of at least 0")
        for name in (
            *("lora_rank", "lora_layers", "batch_size", "iters", "max_seq_length", "segments"),
            *("log_every", "save_every"),
        ):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        check_integer("seed", self.seed, least=0, most=2**63 - 1)
        if self.iters and self.epochs:
            raise UserError("iters and epochs were both given, expected at most one")

    def identity(self) -> dict[str, str]:
        """The settings that a run must share with the run it continues, as text."""
        return {k: str(v) for k, v in asdict(self).items() if k not in _FREE_TO_CHANGE}
