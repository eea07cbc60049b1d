"""The optimizer of a run: mlx's, with a learning rate of its own for streams and for embeddings."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

from ..errors import UserError, shown
from ..files import reason
from .settings import TrainSettings

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


def warm_up_and_fall(peak: float, updates: int) -> Callable[[mx.array], mx.array]:
    """Make a schedule that falls linearly to 0, and rises over the first updates."""
    first = warm_up_updates(updates)

    def rate(step: mx.array) -> mx.array:
        step = step.astype(mx.float32)
        rising = mx.minimum(1.0, (step + 1) / first)
        return peak * (rising * mx.maximum(0.0, 1 - step / updates))

    return rate


def check_optimizer(settings: TrainSettings) -> None:
    """Check the optimizers' arguments."""
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


def optimizer_of(settings: TrainSettings, hidden_size: int) -> optim.MultiOptimizer:
    """Make the optimizers of streams, of their embeddings and of LoRA, each with its own rate."""
    peaks, kind = settings.learning_rates(hidden_size), settings.optimizer
    arguments = settings.optimizer_config.get(kind, {})
    updates = -(-settings.iters // settings.grad_accumulation_steps)
    optimizers = [
        KINDS[kind](learning_rate=warm_up_and_fall(float(peak), updates), **arguments)
        for peak in (peaks.streams, peaks.embeddings, peaks.lora)
    ]
    return optim.MultiOptimizer(
        optimizers,
        [
            lambda name, _: name.startswith("streams.") and name != _EMBEDDINGS,
            lambda name, _: name == _EMBEDDINGS,
        ],
    )


def clipped(gradients: dict[str, Any], most: float) -> tuple[dict[str, Any], mx.array]:
    """Clip gradients to a norm, the pruner's apart; also returns the sum of both norms."""
    streams = dict(gradients["streams"])
    pruner = streams.pop("pruner", {})
    clipped, norm = optim.clip_grad_norm({**gradients, "streams": streams}, most)
    if pruner:
        pruner, apart = optim.clip_grad_norm(pruner, most)
        clipped["streams"]["pruner"], norm = pruner, norm + apart
    return clipped, norm
