"""The optimizer of a run: mlx's, with a learning rate of its own for streams and for embeddings."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx_lm.tuner.utils import build_schedule

from ..errors import UserError, shown
from ..files import reason
from .parameters import Parameters, is_of_streams
from .stream_settings import warm_up_updates

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
    """Return the arguments of an optimizer: those asked for, and our defaults."""
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


class GroupedOptimizer:
    """Several optimizers of one kind, each for the parameters of its learning rate.

    The streams' embeddings must grow to the size of the hidden state that they are added to, and
    new weights may move faster than LoRA on a trained base. The pruner's gradients are clipped by
    themselves, since its loss must not touch the rest.

    Args:
        kind: a key of ``KINDS``.
        options: further arguments of that class.
        schedule: the learning rate.
        factors: factors of the learning rate by group: ``lora``, ``streams``, ``embeddings``.
        max_grad_norm: norm to clip gradients to.
        parameters: the parameters that it will update, by name.
    """

    def __init__(
        self,
        kind: str,
        options: Mapping[str, Any],
        schedule: Schedule,
        factors: Mapping[str, float],
        max_grad_norm: float,
        parameters: Parameters,
    ):
        self._max_grad_norm = max_grad_norm
        self._names: dict[str, list[str]] = {}
        for name in parameters:
            self._names.setdefault(_group(name), []).append(name)
        self._optimizers: dict[str, Any] = {}
        for group, names in self._names.items():
            rate = _scaled(schedule, factors[group])
            self._optimizers[group] = KINDS[kind](learning_rate=rate, **options)
            self._optimizers[group].init({name: parameters[name] for name in names})

    def apply(self, gradients: Parameters, parameters: Parameters) -> tuple[Parameters, mx.array]:
        """Update; returns the new parameters, and the sum of the norms that were clipped."""
        clipped: Parameters = {}
        norms = mx.array(0.0)
        for pruner in (True, False):
            part = {n: g for n, g in gradients.items() if n.startswith("pruner.") == pruner}
            if part:
                own, norm = optim.clip_grad_norm(part, self._max_grad_norm)
                clipped, norms = clipped | own, norms + norm
        updated: Parameters = {}
        for group, names in self._names.items():
            own = {name: clipped[name] for name in names}
            updated |= self._optimizers[group].apply_gradients(own, parameters)
        return updated, norms

    @property
    def learning_rates(self) -> dict[str, float]:
        """Learning rates of the last update, by group."""
        return {group: o.learning_rate.item() for group, o in self._optimizers.items()}

    @property
    def state(self) -> dict[str, mx.array]:
        """State of all optimizers, by group, parameter and kind."""
        flat = {}
        for group, optimizer in self._optimizers.items():
            for name, value in optimizer.state.items():
                if isinstance(value, mx.array):
                    flat[f"{group} {name}"] = value
                else:
                    flat |= {f"{group} {name} {kind}": array for kind, array in value.items()}
        return flat

    @state.setter
    def state(self, flat: Mapping[str, mx.array]) -> None:
        states: dict[str, dict] = {group: {} for group in self._optimizers}
        for key, array in flat.items():
            group, name, *kind = key.split(" ")
            if kind:
                states[group].setdefault(name, {})[kind[0]] = array
            else:
                states[group][name] = array
        for group, optimizer in self._optimizers.items():
            optimizer.state = states[group]


def _group(name: str) -> str:
    if name == "streams.embeddings":
        return "embeddings"
    return "streams" if is_of_streams(name) else "lora"


def _scaled(schedule: Schedule, factor: float) -> Schedule:
    return lambda step: factor * schedule(step)
