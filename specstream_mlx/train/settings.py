"""The settings of a training run, and which of them go together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..errors import UserError, check_integer, is_number, shown
from ..options import FIELDS, FLAG, PATH, TEXT, choice, integer, option
from .stream_settings import StreamSettings

_DATA, _REPORTS = "Model and data", "Reports, validation, checkpoints"


@dataclass(kw_only=True)
class TrainSettings(StreamSettings):
    """Settings of a training run. Names and defaults are mlx_lm's where it has them.

    ``StreamSettings`` has the settings of the streams.
    """

    PANEL: ClassVar[str] = "Optimization"
    FREE_TO_CHANGE: ClassVar[set[str]] = {
        *("adapter_path", "val_batches", "steps_per_report", "steps_per_eval", "save_every"),
        *("patience", "clear_cache_threshold", "resume", "data"),
    }

    model: str = option(
        ..., TEXT, "The base, quantized as it is deployed.", metavar="DIR|REPO", panel=_DATA
    )
    data: str | None = option(
        None,
        TEXT,
        "train.jsonl and valid.jsonl in one of mlx_lm's formats. Without it, the base answers "
        "prompts and its streams learn from that.",
        metavar="DIR",
        panel=_DATA,
    )
    adapter_path: Path = option(
        Path("adapters"),
        PATH,
        "Where the adapter goes; checkpoints and log go to DIR.training.",
        metavar="DIR",
        panel=_DATA,
    )
    max_seq_length: int = option(2048, integer(2), "Longer sequences are left out.", panel=_DATA)
    init_adapter: Path | None = option(
        None,
        PATH,
        "Start from this adapter's weights, and take its shape.",
        metavar="DIR",
        panel=StreamSettings.PANEL,
    )
    iters: int = option(1000, integer(1), "Iterations.")
    batch_size: int = option(4, integer(1), "Sequences in an iteration.")
    grad_accumulation_steps: int = option(1, integer(1), "Iterations of an update.")
    optimizer: str = option("adamw", choice("adam", "adamw", "muon", "sgd", "adafactor"))
    optimizer_config: dict[str, dict[str, Any]] = option(
        dict, FIELDS, "Further arguments, by optimizer.", hidden=True
    )
    lr_schedule: dict[str, Any] | None = option(
        None,
        FIELDS,
        "mlx_lm's, in place of the learning rates, which keep their ratio to learning_rate where "
        "that is given, and are all the same otherwise. Default: a warm-up, then a fall to 0.",
        hidden=True,
    )
    num_layers: int = option(
        -1, integer(-1), "Top layers with LoRA, in shared mode; -1 (default): all."
    )
    lora_parameters: dict[str, Any] = option(
        lambda: {"rank": 8, "dropout": 0.0, "scale": 2.0},
        FIELDS,
        "mlx_lm's rank, scale, dropout and keys, in shared mode.",
        hidden=True,
    )
    segment: int = option(
        8, integer(1), "Positions whose streams are computed together.", hidden=True
    )
    grad_checkpoint: bool = option(False, FLAG, "Less memory, for more time.")
    clear_cache_threshold: int = option(
        0, integer(0), "Bytes of MLX's cache above which it is cleared.", hidden=True
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
        """Check all that can be checked without reading a file.

        Raises:
            UserError: a setting is of another type or out of range, or two exclude each other.
        """
        self.check_streams()
        for name in ("model", "data"):
            if getattr(self, name) == "":
                raise UserError(f"{name} is empty, expected a directory")
        if not self.adapter_path.name:  # beside which the run's directory is called after it
            raise UserError(f"adapter_path is {self.adapter_path}, expected a new directory")
        if self.num_layers != -1:
            check_integer("num_layers", self.num_layers)
            if self.mode == "lossless":
                raise UserError(
                    f"num_layers is {self.num_layers} in lossless mode, expected none: it is the "
                    "number of layers with LoRA, in shared mode"
                )
        self._check_optimizer()
        self._check_lora()
        if self.mode == "shared" and self.data is None:
            raise UserError("mode is 'shared' without --data, expected one with train.jsonl")

    def _check_optimizer(self) -> None:
        from .optimizer import optimizer_options, schedule_of  # which need MLX

        for name, options in self.optimizer_config.items():
            if not isinstance(options, dict):
                raise UserError(
                    f"optimizer_config's {name} is {shown(options)}, expected fields by name"
                )
            optimizer_options(name, options)
        if self.lr_schedule is not None:
            schedule_of(self.lr_schedule, self.updates)
            for name in ("stream_learning_rate", "embedding_learning_rate"):
                if self.learning_rate is None and getattr(self, name) is not None:
                    raise UserError(
                        f"{name} is given with lr_schedule and without learning_rate, expected "
                        "that too: the schedule is multiplied by their ratio"
                    )

    def _check_lora(self) -> None:
        expected = {"rank", "dropout", "scale"}
        lora = self.lora_parameters
        if not expected <= set(lora) <= {*expected, "keys"}:
            raise UserError(
                f"lora_parameters is {shown(lora)}, expected rank, scale, dropout and maybe keys"
            )
        check_integer("lora_parameters' rank", lora["rank"])
        for name, most in (("scale", float("inf")), ("dropout", 1.0)):
            value = lora[name]
            if not is_number(value) or not 0 <= value < most:
                raise UserError(f"lora_parameters' {name} is {shown(value)}, expected 0 to {most}")

        keys = lora.get("keys")
        if keys is not None and not (
            isinstance(keys, list) and all(isinstance(key, str) for key in keys)
        ):
            raise UserError(f"lora_parameters' keys is {shown(keys)}, expected a list of names")

    @property
    def updates(self) -> int:
        """Number of updates in all iterations."""
        return -(-self.iters // self.grad_accumulation_steps)
