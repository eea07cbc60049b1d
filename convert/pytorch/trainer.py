"""The trainer of streams, pruner and (in shared mode) LoRA: arXiv 2402.11131, sections 3 and 4.

In lossless mode the LoRA of ``init_adapter`` is part of the base, and stays as it is.

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode shared --output OUT --epochs 2

It writes the adapter directory ``OUT/adapter`` (see ``adapter_files``), the log ``OUT/log.jsonl``
and the checkpoint ``OUT/checkpoint.pt``, from which ``--resume`` continues. Without it an output
directory that holds an earlier run is refused.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor

from specstream_mlx.adapters.description import describe
from specstream_mlx.errors import UserError, shown
from specstream_mlx.stream_config import StreamConfig
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.items import Item, most_frequent
from specstream_mlx.train.stream_settings import LearningRates

from .adapter_files import check_adapter_replaceable, write_adapter
from .load import base_fingerprint, has_lora, load_adapter, load_base, mount_lora, put_lora
from .losses import Batch, count_correct, n_gram_loss
from .reference import SpeculativeStreamingModel
from .training_data import collate, load_items
from .training_run import (
    OnStep,
    Trained,
    autocast,
    begin,
    log_held_out,
    run_steps,
    training_device,
)
from .training_settings import TrainSettings


def build_model(settings: TrainSettings) -> SpeculativeStreamingModel:
    """Build the untrained model of a run, its new weights drawn from torch's generator."""
    base = load_base(settings.model, settings.dtype)
    settings.check_vocabulary(base.config.vocab_size)
    config = settings.stream_config(
        hidden_size=base.config.hidden_size,
        num_hidden_layers=base.config.num_hidden_layers,
        base_model=str(settings.model),
        base_fingerprint=base_fingerprint(settings.model),
    )
    if settings.mode == "shared":
        base = put_lora(base, settings)
    elif settings.init_adapter and has_lora(settings.init_adapter):
        base = mount_lora(base, settings.init_adapter)
    return SpeculativeStreamingModel(base, config)


def train(settings: TrainSettings, on_step: OnStep | None = None) -> Path:
    """Train an adapter and write it.

    Args:
        settings: the run's settings.
        on_step: see ``OnStep``.

    Returns:
        The adapter directory, ``settings.output / "adapter"``.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    settings = _with_template(settings)
    adapter = settings.output / "adapter"
    check_adapter_replaceable(adapter)
    begin(settings, adapter)
    model = build_model(settings)
    if settings.init_adapter and not settings.resume:
        _start_from(model, settings, settings.init_adapter)
    vocab_size = model.backbone.config.vocab_size
    items, held_out = load_items(settings, settings.prompt_template, vocab_size)
    if settings.draft_vocabulary:
        frequent = most_frequent(items, settings.draft_vocabulary, vocab_size)
        model.streams.vocabulary.copy_(torch.tensor(frequent))
    device = training_device()
    model.to(device)
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if settings.train == "head":
        model.freeze_all_but_head()
    names = [name for name, p in weights.items() if p.requires_grad]
    if not names:
        raise UserError("nothing to train: expected stream embeddings, adapters, a pruner or LoRA")
    peaks = settings.learning_rates(model.config.hidden_size)
    pruner = [weights[name] for name in names if name.startswith("pruner.")]
    # The pruner must not touch the rest, so its gradients are clipped apart.
    trained = Trained(weights, _by_rate(peaks, names), peaks.streams, pruner)
    alphas = settings.alphas(settings.num_streams)

    def loss_of(drawn: list[Item], batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        loss = n_gram_loss(model, batch, alphas)
        return loss.total, {"per_stream": loss.per_stream.tolist(), "pruner": loss.pruner.item()}

    step = run_steps(settings, items, trained, loss_of, on_step)
    if held_out:
        with autocast(settings, device):
            accuracy = evaluate(model, held_out, settings.batch_size)
        log_held_out(settings, step, accuracy)
        note(_describe(accuracy))
    write_adapter(model, adapter)
    return adapter


def _with_template(settings: TrainSettings) -> TrainSettings:
    """The settings with the instruction of the adapter that the run starts from, if it has one."""
    start = settings.init_adapter
    if start is None or settings.prompt_template is not None:
        return settings
    if settings.resume and not start.exists():  # what is needed of it is in the checkpoint
        return settings
    streams = describe(start).stream_config
    return replace(settings, prompt_template=streams.prompt_template if streams else None)


def _by_rate(peaks: LearningRates, names: Iterable[str]) -> dict[float, list[str]]:
    """The names of the parameters by learning rate."""
    rates: dict[float, list[str]] = {}
    for name in names:
        rate = peaks.lora if name.startswith("base.") else peaks.streams
        if name == "streams.embeddings":
            rate = peaks.embeddings
        rates.setdefault(rate, []).append(name)
    return rates


def _start_from(model: SpeculativeStreamingModel, settings: TrainSettings, adapter: Path) -> None:
    """Copy the weights of ``init_adapter``, which must be of the same shape, into a model.

    A conditioned head is left as it is where the adapter's is plain, and new streams where it has
    LoRA alone.
    """
    if settings.may_add_streams and describe(adapter).stream_config is None:
        return
    found = load_adapter(settings.model, adapter, settings.dtype)
    new_head = found.config.stream_head == "plain"
    if not new_head and model.config.stream_head == "plain":
        raise UserError(
            f"init_adapter {adapter}: stream_head is {found.config.stream_head!r}, expected "
            "'plain' as in this run"
        )
    if settings.train == "head":
        _check_frozen(model, found, adapter)
    state = found.state_dict()
    wanted = {
        name: p
        for name, p in model.named_parameters()
        if p.requires_grad and not (new_head and name.startswith("streams.head."))
    }
    for name, parameter in wanted.items():
        shape = tuple(state[name].shape) if name in state else "none"
        if shape != tuple(parameter.shape):
            raise UserError(
                f"init_adapter {adapter}: {name} has shape {shape}, "
                f"expected {tuple(parameter.shape)}"
            )
    model.load_state_dict({name: state[name] for name in wanted}, strict=False)


def _check_frozen(
    model: SpeculativeStreamingModel, found: SpeculativeStreamingModel, adapter: Path
) -> None:
    """Check that what stays as it is in an adapter computes the same in this run."""
    mine = {"stream_head", "stream_head_rank", "draft_vocabulary"}
    mine |= {"base_model", "base_fingerprint", "version"}
    for name in [field.name for field in fields(StreamConfig) if field.name not in mine]:
        value, expected = getattr(found.config, name), getattr(model.config, name)
        if value != expected:
            raise UserError(
                f"init_adapter {adapter}: {name} is {shown(value)}, expected {shown(expected)} as "
                "in this run, which trains its head alone"
            )
    scales, expected_scales = (
        {n: m.scaling for n, m in each.base.named_modules() if isinstance(m, LoraLayer)}
        for each in (found, model)
    )
    for name in sorted(scales.keys() | expected_scales.keys()):
        scale, expected = scales.get(name), expected_scales.get(name)
        if scale != expected:
            raise UserError(
                f"init_adapter {adapter}: the LoRA scale of {name} is {_shown_scale(scale)}, "
                f"expected {_shown_scale(expected)} as by this run's LoRA settings"
            )


def _shown_scale(scale: dict[str, float] | None) -> str:
    """The scale of a layer's only LoRA, as PEFT has it."""
    return "none" if scale is None else f"{next(iter(scale.values())):g}"


def evaluate(
    model: SpeculativeStreamingModel, items: list[Item], batch_size: int
) -> dict[str, Any]:
    """Measure how often main stream, streams and pruner predict the data's next token.

    Args:
        model: the model.
        items: every position sees the item's own tokens before it.
        batch_size: items computed at once.

    Returns:
        ``main``, ``streams`` (a list) and ``pruner``: shares of right top-1 predictions; and
        ``chain``: tokens that a chain draft would gain per step if the text were the data's. Where
        items are of several sources, ``by_source``: the same of each, named up to a colon.
    """
    device = next(model.parameters()).device
    by_source: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: len(item.tokens)):
        by_source.setdefault(item.source.partition(":")[0], []).append(item)
    batches = [
        (source, own[start : start + batch_size])
        for source, own in by_source.items()
        for start in range(0, len(own), batch_size)
    ]
    zeros = torch.zeros((), dtype=torch.int64)
    found = dict.fromkeys(by_source, (zeros, zeros))
    for source, batch in track(batches, "held-out text"):
        (correct, counts), (hits, of) = found[source], count_correct(model, collate(batch, device))
        found[source] = correct + hits, counts + of
    every = sum(c for c, _ in found.values()), sum(n for _, n in found.values())
    accuracy = _shares(*every)
    if len(found) > 1:
        accuracy["by_source"] = {source: _shares(*counted) for source, counted in found.items()}
    return accuracy


def _shares(correct: Tensor, counts: Tensor) -> dict[str, Any]:
    """What ``evaluate`` returns, of the counts of ``count_correct``."""
    main, *streams, pruner, chain = (correct / counts.clamp(min=1)).tolist()
    return {"main": main, "streams": streams, "pruner": pruner, "chain": chain}


def _describe(accuracy: dict[str, Any]) -> str:
    streams = ", ".join(f"{j}: {value:.1%}" for j, value in enumerate(accuracy["streams"], 1))
    return (
        f"held-out top-1: main {accuracy['main']:.1%}; streams {streams}; "
        f"pruner {accuracy['pruner']:.1%}; chain {accuracy['chain']:.2f} tokens"
    )


def main(settings: TrainSettings) -> None:
    """Train streams, pruner and (in shared mode) LoRA on a language model."""
    print(train(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
