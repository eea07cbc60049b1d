"""A training run, whatever is trained: data, schedule, clipping, log and checkpoints."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.rnn import pad_sequence

from specstream_mlx.errors import UserError
from specstream_mlx.files import append, check_shapes, read_json, reason, staged_file
from specstream_mlx.loading.load import read_tokenizer
from specstream_mlx.options import OBJECT, instance, integer, number, what
from specstream_mlx.terminal.progress import progress
from specstream_mlx.train.batches import Batches, Item
from specstream_mlx.train.data import read_split
from specstream_mlx.train.optimizer import warm_up_updates
from specstream_mlx.train.settings import check_identity, identity

from .adapter_files import shapes_of, unpickled
from .losses import Batch
from .training_settings import RunSettings

OnStep = Callable[[int, dict[str, Any]], None]
"""Function that is called after every step with the number of steps done and a line of the log."""

LossOf = Callable[[list[Item], Batch], tuple[Tensor, dict[str, Any]]]
"""Function of items and their batch: a loss to call ``backward`` on, and further figures to log."""

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@dataclass(frozen=True)
class TrainedParameters:
    """The parameters of a run."""

    weights: Mapping[str, Parameter]
    rates: Mapping[float, Sequence[str]]
    """Their names by the peak of their learning rate."""
    peak: float
    """That of the log."""
    apart: Sequence[Parameter] = ()
    """Those whose gradients are clipped apart from the others'."""


def begin(settings: RunSettings, result: Path) -> None:
    """Seed a run that writes the directory ``result``, and refuse an earlier run's output."""
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
    in_bf16 = settings.bf16
    if in_bf16 is None:
        in_bf16 = settings.dtype == "bfloat16" or is_quick_in_bf16(device)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=in_bf16)


def is_quick_in_bf16(device: torch.device) -> bool:
    """Tell whether a device has instructions for bfloat16, which is many times as slow without."""
    return device.type != "cpu" or torch.cpu.get_capabilities().get("avx512_bf16", False)


def load_items(
    settings: RunSettings, template: str | None, vocab_size: int
) -> tuple[list[Item], list[Item]]:
    """Read the training data of a run, and its held-out data, if it has any; see ``read_split``."""
    tokenizer = read_tokenizer(settings.model, read_json(settings.model / "config.json"))
    further = tokenizer, settings.max_seq_length, vocab_size, template
    items = read_split(settings.data, *further)
    return items, read_split(settings.valid_data, *further) if settings.valid_data else []


def collate(items: list[Item], device: torch.device | None = None) -> Batch:
    """Put items into one batch, padded on the right, on a device."""
    lengths = torch.tensor([len(item.tokens) for item in items])
    tokens = torch.zeros(len(items), int(lengths.max()), dtype=torch.int64)
    for row, item in zip(tokens, items, strict=True):
        row[: len(item.tokens)] = torch.tensor(item.tokens)
    starts = torch.tensor([item.stream_from for item in items])
    drawn = None
    if any(item.drawn is not None for item in items):
        places = [torch.tensor(item.positions) for item in items]
        drawn = pad_sequence(places, batch_first=True, padding_value=-1).to(device)
    return Batch(tokens.to(device), starts.to(device), lengths.to(device), drawn)


def run_steps(
    settings: RunSettings,
    items: Sequence[Item],
    trained: TrainedParameters,
    loss_of: LossOf,
    on_step: OnStep | None = None,
) -> int:
    """Train until the run's end, with log and checkpoints; returns the number of steps done.

    ``loss_of`` is called under autocast.
    """
    device, weights = training_device(), trained.weights
    groups = [{"params": [weights[name] for name in names]} for names in trained.rates.values()]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    apart = {id(parameter) for parameter in trained.apart}
    every = [parameter for group in groups for parameter in group["params"]]
    others = [parameter for parameter in every if id(parameter) not in apart]

    step, elapsed_before = 0, 0.0
    if settings.resume:
        step, elapsed_before = _restore(settings, weights, optimizer)
    else:  # so that a run that stops early can be resumed, and no other one takes the directory
        _save(settings, weights, optimizer, 0, 0.0, replace=False)
    batches = Batches(items, settings.batch_size, settings.seed)
    iters = settings.iters
    if iters is None and (settings.epochs or not settings.time_limit):
        iters = max(1, round((settings.epochs or 1) * len(batches)))
    started = time.monotonic() - elapsed_before

    def done() -> float:
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
                _save(settings, weights, optimizer, step, figures["seconds"])
            if on_step is not None:
                on_step(step, figures)
    _save(settings, weights, optimizer, step, time.monotonic() - started)
    return step


def log_held_out(settings: RunSettings, step: int, accuracy: Mapping[str, Any]) -> None:
    """Add the accuracy on held-out text to a run's log."""
    append(settings.output / LOG, json.dumps({"step": step, "held_out": accuracy}) + "\n")


def _save(
    settings: RunSettings,
    weights: Mapping[str, Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    seconds: float,
    *,
    replace: bool = True,
) -> None:
    """Write all that a run needs to continue as if it had not stopped."""
    state = {
        "settings": identity(settings),
        "step": step,
        "seconds": seconds,
        "weights": {name: p.detach() for name, p in weights.items()},
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    with staged_file(settings.output / CHECKPOINT, replace=replace) as scratch:
        torch.save(state, scratch)


def _restore(
    settings: RunSettings, weights: Mapping[str, Parameter], optimizer: torch.optim.Optimizer
) -> tuple[int, float]:
    """Restore weights, optimizer and torch's generator; returns steps done and their seconds."""
    path = settings.output / CHECKPOINT
    if not path.is_file():
        raise UserError(f"nothing to resume: {path} does not exist")
    try:
        state = unpickled(path)
        for name, kind in _STATE.items():
            kind.check(name, state.get(name) if isinstance(state, dict) else None)
        found = state["weights"]
    except UserError as error:
        raise UserError(f"{path} is not a readable checkpoint: {error}") from None
    except Exception as error:  # torch raises what the damaged bytes lead to
        raise UserError(f"{path} is not a readable checkpoint: {reason(error)}") from None
    check_identity(path, state["settings"], identity(settings))
    check_shapes(path, shapes_of(found), shapes_of(weights))
    for name, tensor in found.items():
        if not (tensor.is_floating_point() and torch.isfinite(tensor).all()):
            raise UserError(f"{path}: {name} holds something other than finite numbers")
    known = optimizer.state_dict()["param_groups"]
    try:
        groups = state["optimizer"]["param_groups"]
        if len(groups) != len(known) or any(
            group.get(name, value) != value
            for group, own in zip(groups, known, strict=True)
            for name, value in own.items()
            if name != "lr"
        ):
            raise ValueError("its optimizer has other settings")
        optimizer.load_state_dict(state["optimizer"])
        for parameter, own in optimizer.state.items():
            if own.keys() != {"step", "exp_avg", "exp_avg_sq"}:
                raise ValueError("its optimizer's state is not complete")
            for name, tensor in own.items():
                shape = () if name == "step" else tuple(parameter.shape)
                if tuple(tensor.shape) != shape or not torch.isfinite(tensor).all():
                    raise ValueError(f"its optimizer's {name} does not fit the weights")
        torch.set_rng_state(state["rng"])
    except Exception as error:  # torch raises what a value of another kind leads to
        raise UserError(f"{path} is not a readable checkpoint: {reason(error)}") from None
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(found[name])
    return state["step"], float(state["seconds"])


_TENSORS = what(
    "tensors by name",
    lambda value: isinstance(value, dict) and all(isinstance(t, Tensor) for t in value.values()),
)
_STATE = {
    "settings": OBJECT,
    "step": integer(0),
    "seconds": number(0),
    "weights": _TENSORS,
    "optimizer": OBJECT,
    "rng": instance("a tensor", Tensor),
}
