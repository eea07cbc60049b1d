"""The optimizer of a run: mlx's, with a learning rate of its own for streams and for embeddings."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx_lm.tuner.utils import build_schedule

from ..errors import UserError, shown
from ..files import reason

Schedule = Callable[[mx.array], mx.array]
"""From the number of updates done to a learning rate."""

KINDS: dict[str, Any] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "muon": optim.Muon,
    "sgd": optim.SGD,
    "adafactor": optim.Adafactor,
}
"""mlx_lm's names."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"bias_correction": True},
    "adamw": {"bias_correction": True, "weight_decay": 0.0},
    "adafactor": {"relative_step": False},  # otherwise it takes no learning rate
}


_EMBEDDINGS = "streams.streams.embeddings"
"""Their name in ``Trained``."""


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


def optimizer_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an optimizer: our defaults, and those that the user has chosen."""
    if kind not in KINDS:
        raise UserError(f"optimizer_config has {shown(kind)}, expected some of {', '.join(KINDS)}")
    arguments = {**_DEFAULTS.get(kind, {}), **options}
    ones = {"w": mx.ones((2, 2))}
    try:  # mlx looks at an argument when it computes with it
        updated = KINDS[kind](learning_rate=1.0, **arguments).apply_gradients(ones, ones)
        if not mx.isfinite(updated["w"]).all().item():
            raise ValueError("an update with it is no number")
    except Exception as error:
        raise UserError(f"optimizer_config's {kind} is {shown(options)}: {reason(error)}") from None
    return arguments


def optimizers(
    kind: str, options: Mapping[str, Any], streams: Schedule, embeddings: Schedule, lora: Schedule
) -> optim.MultiOptimizer:
    """Make the optimizers of streams, of their embeddings and of LoRA, each by its schedule."""
    arguments = optimizer_options(kind, options)
    return optim.MultiOptimizer(
        [KINDS[kind](learning_rate=own, **arguments) for own in (streams, embeddings, lora)],
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
