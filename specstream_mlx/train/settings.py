"""The settings of a training run, and which of them go together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config import UserError, check_integer, is_number, shown
from .optimizer import KINDS, optimizer_options, schedule_of
from .stream_settings import StreamSettings

_FREE_TO_CHANGE = {
    *("adapter_path", "val_batches", "steps_per_report", "steps_per_eval", "save_every"),
    *("patience", "log", "clear_cache_threshold", "resume", "data"),
}
"""What may differ between a run and its continuation."""


@dataclass
class TrainSettings(StreamSettings):
    """What to train, on what, and for how long. Names and defaults are mlx_lm's where it has them.

    What is said of the streams stands at ``StreamSettings``.

    Args:
        model: the base, as ``load`` takes it; quantized ones stay as they are.
        data: directory with ``train.jsonl`` and ``valid.jsonl`` in mlx-lm's formats; ``None``: the
            base's own answers.
        adapter_path: the adapter directory that the run writes.
        num_layers: top layers with LoRA, in shared mode; -1: all.
        lora_parameters: mlx-lm's ``rank``, ``scale``, ``dropout`` and ``keys``, in shared mode.
        optimizer: a key of ``optimizer.KINDS``.
        optimizer_config: further arguments, by optimizer.
        lr_schedule: mlx-lm's, in place of the learning rates, which keep their ratio to
            ``learning_rate`` where that is given, and are all the same otherwise. ``None``: a
            warm-up, then a fall to 0 over all iterations.
        max_grad_norm: norm that gradients are clipped to.
        batch_size: sequences in an iteration.
        grad_accumulation_steps: iterations whose gradients make one update.
        iters: iterations.
        max_seq_length: tokens; longer sequences are left out.
        val_batches: batches of validation data that are looked at; -1: all.
        steps_per_report, steps_per_eval, save_every: iterations between reports, validations and
            checkpoints.
        patience: validations without a longer accepted length after which the run ends; 0: none.
        segment: positions whose streams are computed together, App. I.
        grad_checkpoint: compute layers again in the backward pass, to save memory; not with
            dropout.
        compile: compile the step for every shape that comes; lengths are then filled up.
        clear_cache_threshold: bytes of MLX's cache above which it is cleared.
        seed: of new weights, dropout and the order of the data.
        log: file for the figures, a JSON object a line; ``None``: beside the checkpoints.
        resume: go on from the checkpoint.
    """

    model: str
    data: str | None = None
    adapter_path: Path = Path("adapters")
    num_layers: int = -1
    lora_parameters: dict[str, Any] = field(
        default_factory=lambda: {"rank": 8, "dropout": 0.0, "scale": 2.0}
    )
    optimizer: str = "adamw"
    optimizer_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    lr_schedule: dict[str, Any] | None = None
    max_grad_norm: float = 1.0
    batch_size: int = 4
    grad_accumulation_steps: int = 1
    iters: int = 1000
    max_seq_length: int = 2048
    val_batches: int = 25
    steps_per_report: int = 10
    steps_per_eval: int = 200
    save_every: int = 100
    patience: int = 5
    segment: int = 8
    grad_checkpoint: bool = False
    compile: bool = False
    clear_cache_threshold: int = 0
    seed: int = 0
    log: Path | None = None
    resume: bool = False

    def check(self) -> None:
        """Check all that can be checked without reading a file.

        Raises:
            UserError: a setting is of another type or out of range, or two exclude each other.
        """
        self._check_types()
        self.check_streams()
        if self.optimizer not in KINDS:
            found = shown(self.optimizer)
            raise UserError(f"optimizer is {found}, expected one of {', '.join(KINDS)}")
        for name in (
            *("num_msa_layers", "batch_size", "grad_accumulation_steps", "iters"),
            *("steps_per_report", "steps_per_eval", "save_every", "segment"),
        ):
            check_integer(name, getattr(self, name))
        check_integer("max_seq_length", self.max_seq_length, least=2)
        for name in ("patience", "clear_cache_threshold"):
            check_integer(name, getattr(self, name), least=0)
        check_integer("val_batches", self.val_batches, least=-1)
        if self.num_layers != -1:
            check_integer("num_layers", self.num_layers)
            if self.mode == "lossless":
                raise UserError(
                    f"num_layers is {self.num_layers} in lossless mode, expected none: it is the "
                    "number of layers with LoRA, in shared mode"
                )
        check_integer("seed", self.seed, least=0, most=2**32 - 1)
        if not (is_number(self.max_grad_norm) and self.max_grad_norm > 0):
            raise UserError(f"max_grad_norm is {shown(self.max_grad_norm)}, expected more than 0")
        for name, options in self.optimizer_config.items():
            optimizer_options(name, options)
        if self.lr_schedule is not None:
            schedule_of(self.lr_schedule, self.updates)
            for name in ("stream_learning_rate", "embedding_learning_rate"):
                if self.learning_rate is None and getattr(self, name) is not None:
                    raise UserError(
                        f"{name} is given with lr_schedule and without learning_rate, expected "
                        "that too: the schedule is multiplied by their ratio"
                    )
        self._check_lora()
        if self.mode == "shared" and self.data is None:
            raise UserError("mode is 'shared' without --data, expected one with train.jsonl")

    def _check_types(self) -> None:
        kinds: dict[type, tuple[str, ...]] = {
            str: ("model", "data", "prompt_template", "mode", "optimizer", "stream_head"),
            bool: ("grad_checkpoint", "compile", "resume"),
            dict: ("optimizer_config", "lr_schedule"),
        }
        for kind, names in kinds.items():
            for name in names:
                value = getattr(self, name)
                optional = self.__dataclass_fields__[name].default is None
                if not (isinstance(value, kind) or (optional and value is None)):
                    said = {str: "a text", bool: "true or false", dict: "fields by name"}[kind]
                    raise UserError(f"{name} is {shown(value)}, expected {said}")
        for name, options in self.optimizer_config.items():
            if not isinstance(options, dict):
                raise UserError(
                    f"optimizer_config's {name} is {shown(options)}, expected fields by name"
                )
        for name in ("model", "data"):
            if getattr(self, name) == "":
                raise UserError(f"{name} is empty, expected a directory")
        if not self.adapter_path.name:  # beside which the run's directory is called after it
            raise UserError(f"adapter_path is {self.adapter_path}, expected a new directory")

    def _check_lora(self) -> None:
        expected = {"rank", "dropout", "scale"}
        found = self.lora_parameters
        if not isinstance(found, Mapping) or not expected <= set(found) <= {*expected, "keys"}:
            raise UserError(
                f"lora_parameters is {shown(found)}, expected rank, scale, dropout and maybe keys"
            )
        check_integer("lora_parameters' rank", found["rank"])
        for name, most in (("scale", float("inf")), ("dropout", 1.0)):
            value = found[name]
            if not is_number(value) or not 0 <= value < most:
                raise UserError(f"lora_parameters' {name} is {shown(value)}, expected 0 to {most}")

        keys = found.get("keys")
        if keys is not None and not (
            isinstance(keys, list) and all(isinstance(key, str) for key in keys)
        ):
            raise UserError(f"lora_parameters' keys is {shown(keys)}, expected a list of names")

    @property
    def updates(self) -> int:
        """Updates in all iterations."""
        return -(-self.iters // self.grad_accumulation_steps)

    def identity(self) -> dict[str, str]:
        """The settings that a run must share with the one that it continues, as text."""
        return {k: str(v) for k, v in asdict(self).items() if k not in _FREE_TO_CHANGE}
