"""The settings of a run that trains LoRA."""

from dataclasses import dataclass

from specstream_mlx.options import POSITIVE, integer, option, what

from .run_settings import AnsweringSettings

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
class LoraSettings(LoraShape, AnsweringSettings):
    """The settings of a run that trains LoRA alone."""

    learning_rate: float = option(
        3e-3,
        POSITIVE,
        "Peak of the learning rate. Low ranks want high ones: 3e-3 suits rank 4, 1e-3 rank 16.",
    )
