"""The settings of training in PyTorch, and which of them go together."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specstream_mlx.errors import UserError
from specstream_mlx.options import FLAG, PATH, POSITIVE, choice, integer, number, option, what
from specstream_mlx.train.settings import StreamSettings

_NAMES = what(
    "names as in q_proj,v_proj",
    lambda value: isinstance(value, list | tuple) and len(value) > 0,
    lambda text: tuple(text.split(",")),
    "NAME,NAME",
)


@dataclass
class RunSettings:
    """The settings of a training run: on which base and data, and for how long."""

    FREE_TO_CHANGE: ClassVar[set[str]] = {
        *("output", "valid_data", "time_limit", "log_every", "save_every", "resume")
    }

    model: Path = option(
        ..., PATH, "Directory of the base model, Hugging Face's or quantized by MLX."
    )
    data: Path = option(..., PATH, 'Training data: JSONL of {"prompt": ..., "completion": ...}.')
    output: Path = option(..., PATH, "Directory for the result, log and checkpoint.")
    valid_data: Path | None = option(
        None, PATH, "Held-out JSONL; measures the accuracy at the end."
    )
    weight_decay: float = option(0.0, number(0), "AdamW's weight decay.")
    max_grad_norm: float = option(1.0, POSITIVE, "Norm that gradients are clipped to.")
    batch_size: int = option(32, integer(1), "Items per step.")
    iters: int | None = option(None, integer(1), "Number of steps.")
    epochs: float | None = option(
        None, POSITIVE, "Passes over the data. Default: 1, without --iters and --time-limit."
    )
    time_limit: float | None = option(
        None, POSITIVE, "Minutes after which the run ends; the learning rate falls accordingly."
    )
    max_seq_length: int = option(
        1024, integer(1), "Most tokens of an item; longer ones are left out."
    )
    bf16: bool | None = option(
        None,
        FLAG,
        "Whether to compute in bfloat16 by autocast. Default: on GPUs, on CPUs with instructions "
        "for it, and with --dtype bfloat16.",
        "--bf16/--no-bf16",
    )
    dtype: str = option(
        "float32",
        choice("float32", "bfloat16"),
        "What the base's linear layers are held in: float32, or bfloat16 for half the memory and "
        "the same loss as float32 with --bf16.",
    )
    seed: int = option(
        0, integer(0, 2**63 - 1), "Seed of the new weights and of the order of the data."
    )
    log_every: int = option(10, integer(1), "Steps between two lines of the log.")
    save_every: int = option(200, integer(1), "Steps between two checkpoints.")
    resume: bool = option(
        False,
        FLAG,
        "Whether to continue from the checkpoint in --output.",
        "--resume/--no-resume",
    )

    def check_run(self) -> None:
        """Check which of these go together."""
        if self.dtype == "bfloat16" and self.bf16 is False:
            raise UserError(
                "dtype is 'bfloat16' and bf16 is off, expected float32 where that is computed in"
            )
        if self.iters and self.epochs:
            raise UserError("iters and epochs were both given, expected at most one")


@dataclass
class TorchTrainSettings(StreamSettings, RunSettings):
    """The settings of a run that trains streams, and LoRA in shared mode; or LoRA alone."""

    lora_alone: bool = option(
        False, FLAG, "Train LoRA without streams; lossless streams for it can follow."
    )
    lora_rank: int | None = option(None, integer(1), "Rank of LoRA. Default: 8.")
    lora_alpha: float | None = option(
        None, POSITIVE, "PEFT's alpha of LoRA. Default: twice the rank."
    )
    lora_layers: int | None = option(
        None, integer(1), "Number of top layers with LoRA. Default: all."
    )
    lora_targets: tuple[str, ...] | None = option(
        None, _NAMES, "Linear layers with LoRA, such as q_proj,v_proj. Default: all."
    )

    def check(self) -> None:
        """Check all that can be checked without reading a file."""
        self.check_streams()
        self.check_run()
        if self.lora_alone and self.init_adapter is not None:
            raise UserError("lora_alone and init_adapter were both given, expected at most one")
        trains_new = self.lora_alone or (self.mode == "shared" and self.init_adapter is None)
        for name in ("lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
            if getattr(self, name) is not None and not trains_new:
                raise UserError(
                    f"{name} is for new LoRA, in shared mode or with lora_alone, and this run puts "
                    "none on the base"
                )
