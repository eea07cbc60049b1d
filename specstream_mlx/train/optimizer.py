"""The optimizer of a run: mlx's, with a learning rate of its own for streams and for embeddings."""

from collections.abc import Callable, Mapping

import mlx.core as mx
import mlx.optimizers as optim

from .parameters import Parameters, is_of_streams

Schedule = Callable[[mx.array], mx.array]
"""From the number of updates done to a factor or a learning rate."""

KINDS: dict[str, type[optim.Optimizer]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "muon": optim.Muon,
    "sgd": optim.SGD,
    "adafactor": optim.Adafactor,
}
"""mlx_lm's names."""


def warm_up_and_fall(updates: int, warm_up: float = 0.03) -> Schedule:
    """A schedule that rises over a share of the updates while it falls linearly to 0 over all."""
    first = max(1, round(warm_up * updates))

    def factor(step: mx.array) -> mx.array:
        step = step.astype(mx.float32)
        rising = mx.minimum(1.0, (step + 1) / first)
        return rising * mx.maximum(0.0, 1 - step / updates)

    return factor


class GroupedOptimizer:
    """Several optimizers of one kind, each for the parameters of its learning rate.

    The streams' embeddings must grow to the size of the hidden state that they are added to, and
    new weights may move faster than LoRA on a trained base. The pruner's gradients are clipped by
    themselves, since its loss must not touch the rest.

    Args:
        kind: a key of ``KINDS``.
        options: further arguments of that class.
        rates: learning rate by group: ``lora``, ``streams``, ``embeddings``.
        schedule: factor of all rates.
        max_grad_norm: gradients are clipped to this norm.
        names: of all parameters.
    """

    def __init__(
        self,
        kind: str,
        options: Mapping[str, float],
        rates: Mapping[str, float],
        schedule: Schedule,
        max_grad_norm: float,
        names: list[str],
    ):
        self._max_grad_norm = max_grad_norm
        self._names: dict[str, list[str]] = {}
        for name in names:
            self._names.setdefault(_group(name), []).append(name)
        self._optimizers = {
            group: KINDS[kind](learning_rate=_scaled(schedule, rates[group]), **options)
            for group in self._names
        }

    def apply(self, gradients: Parameters, parameters: Parameters) -> Parameters:
        """The parameters after an update."""
        clipped = {}
        for pruner in (True, False):
            part = {n: g for n, g in gradients.items() if n.startswith("pruner.") == pruner}
            clipped |= optim.clip_grad_norm(part, self._max_grad_norm)[0] if part else {}
        updated = {}
        for group, names in self._names.items():
            own = {name: clipped[name] for name in names}
            updated |= self._optimizers[group].apply_gradients(own, parameters)
        return updated

    def init(self, parameters: Parameters) -> None:
        """Make the state for these parameters."""
        for group, names in self._names.items():
            self._optimizers[group].init({name: parameters[name] for name in names})

    @property
    def learning_rates(self) -> dict[str, float]:
        """The last update's, by group."""
        return {group: o.learning_rate.item() for group, o in self._optimizers.items()}

    @property
    def state(self) -> dict[str, mx.array]:
        """All that the optimizers keep, by group, parameter and kind."""
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


def _scaled(schedule: Schedule, rate: float) -> Schedule:
    return lambda step: rate * schedule(step)
