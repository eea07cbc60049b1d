"""The settings of a training run, and which of them go together."""

from dataclasses import dataclass, fields
from typing import ClassVar

from specstream_mlx.config import UserError
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import FLAG, integer
from specstream_mlx.train.stream_settings import StreamSettings

from .lora_settings import LoraShape
from .run_settings import RunSettings


@dataclass
class TrainSettings(StreamSettings, LoraShape, RunSettings):
    """The settings of a run that trains streams, and LoRA in shared mode."""

    FREE_TO_CHANGE: ClassVar[set[str]] = RunSettings.FREE_TO_CHANGE | {"keep_hidden"}

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
            for name in [field.name for field in fields(LoraShape)]:
                if getattr(self, name) is not None:
                    raise UserError(f"{name} is for shared mode, lossless mode trains no LoRA")
        elif self.keep_hidden:
            raise UserError("keep_hidden is for lossless mode, in shared mode the base changes")
