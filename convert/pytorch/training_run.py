"""The loop of a training run: schedule, clipping, log and checkpoints, whatever is trained."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from specstream_mlx.errors import UserError
from specstream_mlx.files import append
from specstream_mlx.terminal.progress import progress
from specstream_mlx.train.items import Batches, Item
from specstream_mlx.train.stream_settings import warm_up_updates

from .checkpoint import Checkpoint
from .losses import Batch
from .training_data import collate
from .training_settings import RunSettings

OnStep = Callable[[int, dict[str, Any]], None]
"""Function that is called after every step with the number of steps done and a line of the log."""

LossOf = Callable[[list[Item], Batch], tuple[Tensor, dict[str, Any]]]
"""Function of items and their batch: a loss to call ``backward`` on, and further figures to log."""

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@dataclass(frozen=True)
class Trained:
    """The parameters of a run.

    Attributes:
        weights: by name, those too that stay as they are: what a checkpoint holds.
        rates: the names of those that are trained, by the peak of their learning rate.
        peak: that peak which the log tells of.
        apart: trained parameters whose gradients are clipped apart from the others'.
    """

    weights: Mapping[str, Parameter]
    rates: Mapping[float, Sequence[str]]
    peak: float
    apart: Sequence[Parameter] = ()


def begin(settings: RunSettings, result: Path) -> None:
    """Seed torch's generator for a run, of which nothing may be there unless it is resumed.

    Args:
        settings: the run's.
        result: directory that the run writes in the end.

    Raises:
        UserError: the output holds an earlier run that is not resumed.
    """
    for path in (result, settings.output / CHECKPOINT, settings.output / LOG):
        there = path.exists() and not (path.is_dir() and not any(path.iterdir()))
        if there and not settings.resume:
            raise UserError(
                f"{settings.output} holds {path.name} of an earlier run, expected --resume to "
                "continue it or another --output"
            )
    torch.manual_seed(settings.seed)


def training_device() -> torch.device:
    """The device that runs compute on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast(settings: RunSettings, device: torch.device) -> torch.autocast:
    """The dtype in which a run's products are computed."""
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=computes_in_bf16(settings, device)
    )


def computes_in_bf16(settings: RunSettings, device: torch.device) -> bool:
    """Tell whether a run computes in bfloat16."""
    if settings.bf16 is not None:
        return settings.bf16
    return settings.dtype == "bfloat16" or is_quick_in_bf16(device)


def is_quick_in_bf16(device: torch.device) -> bool:
    """Tell whether a device has instructions for bfloat16, which is many times as slow without."""
    return device.type != "cpu" or torch.cpu.get_capabilities().get("avx512_bf16", False)


def run_steps(
    settings: RunSettings,
    items: Sequence[Item],
    trained: Trained,
    loss_of: LossOf,
    on_step: OnStep | None = None,
) -> int:
    """Train until the run's end; log and checkpoints go to its output.

    Args:
        settings: the run's.
        items: the training data.
        trained: the parameters.
        loss_of: computes the loss of a batch, under autocast.
        on_step: see ``OnStep``.

    Returns:
        The number of steps done.

    Raises:
        UserError: a file cannot be written, or the checkpoint that is resumed not be read.
    """
    device, weights = training_device(), trained.weights
    names = trained.rates.values()
    groups = [{"params": [weights[name] for name in group]} for group in names]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    apart = {id(parameter) for parameter in trained.apart}
    every = [parameter for group in groups for parameter in group["params"]]
    others = [parameter for parameter in every if id(parameter) not in apart]

    state = Checkpoint(settings.output / CHECKPOINT, settings, dict(weights), optimizer)
    step, elapsed_before = 0, 0.0
    if settings.resume:
        step, elapsed_before = state.load()
    else:  # so that a run that stops early can be resumed, and no other one takes the directory
        state.save(0, 0.0, replace=False)
    batches = Batches(items, settings.batch_size, settings.seed)
    iters = settings.iters
    if iters is None and (settings.epochs or not settings.time_limit):
        iters = max(1, round((settings.epochs or 1) * len(batches)))
    started = time.monotonic() - elapsed_before

    def done() -> float:
        """The share of the run that is done, from 0 to 1."""
        by_steps = step / iters if iters else 0.0
        minutes = (time.monotonic() - started) / 60
        return max(by_steps, minutes / settings.time_limit if settings.time_limit else 0.0)

    with progress("training") as show:
        show(done(), 1.0)
        for drawn in batches.from_step(step):
            if (fraction := done()) >= 1:
                break
            factor = min(1.0, (step + 1) / warm_up_updates(iters)) * (1 - fraction)
            for group, rate in zip(optimizer.param_groups, trained.rates, strict=True):
                group["lr"] = rate * factor
            with autocast(settings, device):
                loss, further = loss_of(drawn, collate(drawn, device))
            loss.backward()
            for part in (trained.apart, others):
                torch.nn.utils.clip_grad_norm_(part, settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            step += 1

            figures = {
                "step": step,
                "loss": loss.item(),
                **further,
                "learning_rate": trained.peak * factor,
                "seconds": time.monotonic() - started,
            }
            if step % settings.log_every == 0 or step == iters:
                append(settings.output / LOG, json.dumps(figures) + "\n")
            show(done(), 1.0, f"loss {figures['loss']:.3f}")
            if step % settings.save_every == 0:
                state.save(step, figures["seconds"])
            if on_step is not None:
                on_step(step, figures)
    state.save(step, time.monotonic() - started)
    return step


def log_held_out(settings: RunSettings, step: int, accuracy: Mapping[str, Any]) -> None:
    """Add the accuracy on held-out text to a run's log."""
    append(settings.output / LOG, json.dumps({"step": step, "held_out": accuracy}) + "\n")
