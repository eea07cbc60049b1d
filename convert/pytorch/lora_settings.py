"""The settings of a run that trains LoRA."""

from dataclasses import dataclass

from specstream_mlx.options.fields import check_options, option
from specstream_mlx.options.kinds import POSITIVE, TEXT, integer, what

from .run_settings import RunSettings

_NAMES = what(
    "names as in q_proj,v_proj",
    lambda value: isinstance(value, list | tuple) and len(value) > 0,
    lambda text: tuple(text.split(",")),
    "NAME,NAME",
)


@dataclass(kw_only=True)
class LoraShape:
    """Where LoRA is put on a base, and of which rank; ``None``: as the help says."""

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


@dataclass(kw_only=True)
class LoraSettings(LoraShape, RunSettings):
    """The settings of a run that trains LoRA alone."""

    learning_rate: float = option(
        3e-3,
        POSITIVE,
        "Peak of the learning rate. Low ranks want high ones: 3e-3 suits rank 4, 1e-3 rank 16.",
    )
    prompt_template: str | None = option(
        None, TEXT, "Text around every prompt, with {text} in its place.", metavar="TEXT"
    )

    def check(self) -> None:
        """Check all that can be checked without reading a file.

        Raises:
            UserError: a setting is out of range, or two exclude each other.
        """
        check_options(self)
        self.check_run()
