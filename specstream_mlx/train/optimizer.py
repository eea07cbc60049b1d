"""The optimizer of a run: mlx's, with a learning rate of its own for streams and for embeddings."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx_lm.tuner.utils import build_schedule

from ..errors import UserError, shown
from ..files import reason
from .settings import TrainSettings

Schedule = Callable[[mx.array], mx.array]
"""From the number of updates done to a learning rate."""

KINDS: dict[str, Any] = {  # mlx_lm's names
    "adam": partial(optim.Adam, bias_correction=True),
    "adamw": partial(optim.AdamW, bias_correction=True, weight_decay=0.0),
    "muon": optim.Muon,
    "sgd": optim.SGD,
    "adafactor": partial(optim.Adafactor, relative_step=False),  # else it takes no learning rate
}

_EMBEDDINGS = "streams.streams.embeddings"


def warm_up_updates(updates: int | None) -> int:
    """Return in how many updates of a run the rates rise; ``None``: a time limit ends it."""
    return 20 if updates is None else max(1, round(0.03 * updates))


def warm_up_and_fall(peak: float, updates: int) -> Schedule:
    """Make a schedule that falls linearly to 0, and rises over the first updates."""
    first = warm_up_updates(updates)

    def rate(step: mx.array) -> mx.array:
        step = step.astype(mx.float32)
        rising = mx.minimum(1.0, (step + 1) / first)
        return peak * rising * mx.maximum(0.0, 1 - step / updates)

    return rate


def schedule_of(fields: dict[str, Any], updates: int) -> Schedule:
    """Make mlx_lm's schedule from its ``name``, ``arguments`` and ``warmup``."""
    try:
        schedule = build_schedule(fields)
        rates = {n: float(schedule(mx.array(n))) for n in (0, updates // 2, updates - 1)}
    except Exception as error:  # mlx_lm lets through whatever a wrong field leads to
        raise UserError(f"lr_schedule is {shown(fields)}: {reason(error)}") from None
    for number, rate in rates.items():
        if not 0 <= rate < math.inf:
            raise UserError(
                f"lr_schedule is {shown(fields)}, whose rate at update {number} is {rate}, "
                "expected a number of at least 0"
            )
    return schedule


def check_optimizer(settings: TrainSettings) -> None:
    """Check the optimizer's arguments and the schedule of learning rates."""
    ones = {"w": mx.ones((2, 2))}
    for kind, options in settings.optimizer_config.items():
        if kind not in KINDS:
            expected = f"some of {', '.join(KINDS)}"
            raise UserError(f"optimizer_config has {shown(kind)}, expected {expected}")
        where = f"optimizer_config's {kind} is {shown(options)}"
        if not isinstance(options, dict):
            raise UserError(f"{where}, expected fields by name")
        try:  # mlx looks at an argument when it computes with it
            updated = KINDS[kind](learning_rate=1.0, **options).apply_gradients(ones, ones)
            if not mx.isfinite(updated["w"]).all().item():
                raise ValueError("an update with it is no number")
        except Exception as error:
            raise UserError(f"{where}: {reason(error)}") from None
    if settings.lr_schedule is None:
        return
    schedule_of(settings.lr_schedule, settings.updates)
    for name in ("stream_learning_rate", "embedding_learning_rate"):
        if settings.learning_rate is None and getattr(settings, name) is not None:
            raise UserError(
                f"{name} is given with lr_schedule and without learning_rate, expected that too: "
                "the schedule is multiplied by their ratio"
            )


def optimizer_of(settings: TrainSettings, hidden_size: int) -> optim.MultiOptimizer:
    """Make the optimizers of streams, of their embeddings and of LoRA, each with its own rate."""
    peaks, fields = settings.learning_rates(hidden_size), settings.lr_schedule
    if fields is None:
        schedule, unit = warm_up_and_fall(1.0, settings.updates), 1.0
    else:
        schedule, unit = schedule_of(fields, settings.updates), peaks.lora
    kind = settings.optimizer
    arguments = settings.optimizer_config.get(kind, {})

    def of(peak: float) -> optim.Optimizer:
        factor = 1.0 if fields and settings.learning_rate is None else peak / unit
        return KINDS[kind](learning_rate=lambda step: factor * schedule(step), **arguments)

    return optim.MultiOptimizer(
        [of(peak) for peak in (peaks.streams, peaks.embeddings, peaks.lora)],
        [
            lambda name, _: name.startswith("streams.") and name != _EMBEDDINGS,
            lambda name, _: name == _EMBEDDINGS,
        ],
    )


def clipped(gradients: dict[str, Any], most: float) -> tuple[dict[str, Any], mx.array]:
    """Clip gradients to a norm, the pruner's apart; also returns the sum of both norms."""
    streams = dict(gradients["streams"])
    pruner = streams.pop("pruner", {})
    own, norm = optim.clip_grad_norm({**gradients, "streams": streams}, most)
    if pruner:
        pruner, apart = optim.clip_grad_norm(pruner, most)
        own["streams"]["pruner"], norm = pruner, norm + apart
    return own, norm
