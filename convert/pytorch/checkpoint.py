"""Checkpoints of a training run."""

import os
from pathlib import Path

import torch

from .formats import FormatError
from .settings import SettingsError, TrainSettings


def save_checkpoint(
    path: Path,
    settings: TrainSettings,
    trainable: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    seconds: float,
) -> None:
    """Write weights, optimizer, random state and progress, by way of a rename."""
    state = {
        "settings": settings.identity(),
        "step": step,
        "seconds": seconds,
        "weights": {name: p.detach() for name, p in trainable.items()},
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    scratch = path.with_suffix(".tmp")
    torch.save(state, scratch)
    os.replace(scratch, path)


def load_checkpoint(
    path: Path,
    settings: TrainSettings,
    trainable: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> tuple[int, float]:
    """Restore a checkpoint of ``save_checkpoint`` in place.

    Returns:
        Its step and the seconds spent before it.

    Raises:
        SettingsError: there is none, or it was made with other settings.
        FormatError: it is damaged.
    """
    if not path.is_file():
        raise SettingsError(f"nothing to resume: {path} does not exist")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found, step, seconds = state["settings"], state["step"], state["seconds"]
    except Exception as error:  # torch.load raises what the damaged bytes lead to
        raise FormatError(f"{path} is not a readable checkpoint: {type(error).__name__}") from None
    expected = settings.identity()
    for name in sorted(set(found) | set(expected)):
        if found.get(name) != expected.get(name):
            raise SettingsError(
                f"{path} was made with {name} = {found.get(name)}, now it is {expected.get(name)}"
            )
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(state["weights"][name])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return step, seconds
