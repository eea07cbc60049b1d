"""The settings of a training run, and which of them go together."""

from dataclasses import dataclass, fields

from specstream_mlx.config import UserError
from specstream_mlx.train.stream_settings import StreamSettings

from .lora_settings import LoraShape
from .run_settings import RunSettings


@dataclass
class TrainSettings(StreamSettings, LoraShape, RunSettings):
    """The settings of a run that trains streams, and LoRA in shared mode."""

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
