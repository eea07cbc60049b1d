"""The settings of a training run, and which of them go together."""

from dataclasses import dataclass
from typing import ClassVar

from specstream_mlx.config import UserError
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import FLAG, POSITIVE, integer, what
from specstream_mlx.train.stream_settings import StreamSettings

from .run_settings import RunSettings

_NAMES = what(
    "names as in q_proj,v_proj",
    lambda value: isinstance(value, list | tuple) and len(value) > 0,
    lambda text: tuple(text.split(",")),
    "NAME,NAME",
)


@dataclass
class TrainSettings(StreamSettings, RunSettings):
    """The settings of a run that trains streams, and LoRA in shared mode."""

    FREE_TO_CHANGE: ClassVar[set[str]] = RunSettings.FREE_TO_CHANGE | {"keep_hidden"}

    lora_rank: int | None = option(None, integer(1), "Rank of LoRA, in shared mode. Default: 8.")
    lora_alpha: float | None = option(
        None, POSITIVE, "PEFT's alpha of LoRA. Default: twice the rank."
    )
    lora_layers: int | None = option(
        None, integer(1), "Number of top layers with LoRA. Default: all."
    )
    lora_targets: tuple[str, ...] | None = option(
        None, _NAMES, "Linear layers with LoRA, such as q_proj,v_proj. Default: all."
    )
    segments: int = option(
        1, integer(1), "Pieces in which a completion's streams are computed: less memory."
    )
    keep_hidden: bool = option(
        False,
        FLAG,
        "Whether to keep the base's hidden states below the streams in memory, for the epochs "
        "after the first (lossless mode): 4 bytes times the hidden size for every token.",
        "--keep-hidden/--no-keep-hidden",
    )

    def check(self) -> None:
        """Check all that can be checked without reading a file.

        Raises:
            UserError: a setting is out of range, or two exclude each other.
        """
        self.check_streams()
        self.check_run()
        if self.mode == "lossless":
            for name in ("lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name} is for shared mode, lossless mode trains no LoRA")
        elif self.keep_hidden:
            raise UserError("keep_hidden is for lossless mode, in shared mode the base changes")
