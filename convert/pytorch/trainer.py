"""Train streams, pruner and (in shared mode) LoRA on a language model: arXiv 2402.11131, 3 and 4.

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode shared --output OUT --epochs 2

``OUT/adapter`` is the adapter directory (see ``formats``), ``OUT/log.jsonl`` the log and
``OUT/checkpoint.pt`` what ``--resume`` continues from.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import AutoTokenizer

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.config import StreamConfig

from .backbone import linear_layers
from .checkpoint import load_checkpoint, save_checkpoint
from .data import Item, batches_per_epoch, collate, epoch, read_pairs, tokenize
from .formats import (
    FormatError,
    base_fingerprint,
    check_target,
    load_adapter,
    load_base,
    write_adapter,
)
from .losses import Batch, count_correct, default_alphas, n_gram_loss
from .reference import SpeculativeStreamingModel
from .settings import SettingsError, TrainSettings

WARM_UP = 0.03


def build_model(settings: TrainSettings) -> SpeculativeStreamingModel:
    """The untrained model of these settings, new weights drawn from torch's generator.

    Raises:
        UserError: one sentence on what is wrong.
    """
    base = load_base(settings.model)
    shared = settings.mode == "shared"
    stream_mlp = settings.stream_mlp or ("base" if shared else "adapter")
    adapter_rank, init_rank = settings.stream_adapter_rank, settings.stream_init_rank
    if adapter_rank is None:
        adapter_rank = 0 if stream_mlp == "base" else 8
    if init_rank is None:
        init_rank = 8 if settings.stream_init == "linear" else 0
    config = StreamConfig(
        mode=settings.mode,
        num_msa_layers=settings.num_msa_layers,
        hidden_size=base.config.hidden_size,
        num_hidden_layers=base.config.num_hidden_layers,
        num_streams=settings.num_streams,
        stream_init=settings.stream_init,
        stream_init_rank=init_rank,
        value_rotation_epsilon=settings.value_rotation_epsilon,
        stream_mlp=stream_mlp,
        stream_adapter_rank=adapter_rank,
        pruner_rank=settings.pruner_rank,
        pruner_form=settings.pruner_form,
        base_model=str(settings.model),
        base_fingerprint=base_fingerprint(settings.model),
        prompt_template=settings.prompt_template,
    )
    if shared:
        layers = config.num_hidden_layers
        if (settings.lora_layers or 0) > layers:
            raise SettingsError(f"lora_layers is {settings.lora_layers}, the base has {layers}")
        linear = linear_layers(base)
        for target in settings.lora_targets or ():
            if target not in linear:
                raise SettingsError(
                    f"lora_targets has {target!r}, expected some of {', '.join(linear)}"
                )
        rank = settings.lora_rank or 8
        base = get_peft_model(
            base,
            LoraConfig(
                task_type="CAUSAL_LM",
                r=rank,
                lora_alpha=settings.lora_alpha or 2 * rank,
                target_modules=list(settings.lora_targets or linear),
                layers_to_transform=settings.lora_layers
                and list(range(layers - settings.lora_layers, layers)),
            ),
        )
        for module in base.modules():
            if isinstance(module, LoraLayer):  # autocast does the casts that are needed
                module.cast_input_dtype_enabled = False
    return SpeculativeStreamingModel(base, config)


def train(
    settings: TrainSettings, on_step: Callable[[int, dict[str, Any]], None] | None = None
) -> Path:
    """Train an adapter.

    Args:
        settings: what to train.
        on_step: called after every step with its number and figures.

    Returns:
        The adapter directory, ``settings.output / "adapter"``.

    Raises:
        UserError: one sentence on what is wrong.
    """
    settings.check()
    adapter = settings.output / "adapter"
    check_target(adapter)
    _keep_freed_memory()
    torch.manual_seed(settings.seed)
    model = build_model(settings)
    if settings.init_adapter and not settings.resume:
        _start_from(model, settings.model, settings.init_adapter)
    items, held_out = _load_items(settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise SettingsError("nothing to train: no embeddings, adapters, pruner or LoRA")
    rates = _learning_rates(settings, trainable)
    groups = [{"params": [trainable[name] for name in names]} for names in rates.values()]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    pruner = [p for name, p in trainable.items() if name.startswith("pruner.")]
    others = [p for name, p in trainable.items() if not name.startswith("pruner.")]
    alphas = default_alphas(settings.mode, settings.num_streams)
    if settings.alpha_main is not None:
        alphas[0] = settings.alpha_main
    if settings.alpha_streams is not None:
        alphas[1:] = [settings.alpha_streams] * settings.num_streams

    settings.output.mkdir(parents=True, exist_ok=True)
    checkpoint = settings.output / "checkpoint.pt"
    step, elapsed_before = 0, 0.0
    if settings.resume:
        step, elapsed_before = load_checkpoint(checkpoint, settings, trainable, optimizer)
    log = (settings.output / "log.jsonl").open("a" if settings.resume else "w", encoding="utf-8")
    per_epoch = batches_per_epoch(items, settings.batch_size)
    iters = settings.iters
    if iters is None and (settings.epochs or not settings.time_limit):
        iters = max(1, round((settings.epochs or 1) * per_epoch))
    started = time.monotonic() - elapsed_before

    def done() -> float:
        """The fraction of the run behind us."""
        by_steps = step / iters if iters else 0.0
        minutes = (time.monotonic() - started) / 60
        return max(by_steps, minutes / settings.time_limit if settings.time_limit else 0.0)

    with log, _progress() as progress:
        task = progress.add_task("training", total=1.0)
        for batch in _batches(items, settings, step, per_epoch):
            if (fraction := done()) >= 1:
                break
            factor = min(1.0, (step + 1) / _warm_up_steps(iters)) * (1 - fraction)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            batch = _to(batch, device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.bf16):
                loss = n_gram_loss(model, batch, alphas, settings.segments)
            loss.total.backward()
            for part in (pruner, others):  # apart, as the pruner must not touch the rest
                torch.nn.utils.clip_grad_norm_(part, settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            step += 1

            figures = {
                "step": step,
                "loss": loss.total.item(),
                "per_stream": loss.per_stream.tolist(),
                "pruner": loss.pruner.item(),
                "learning_rate": settings.learning_rate * factor,
                "seconds": time.monotonic() - started,
            }
            if step % settings.log_every == 0 or step == iters:
                print(json.dumps(figures), file=log, flush=True)
            progress.update(task, completed=done(), description=f"loss {figures['loss']:.3f}")
            if step % settings.save_every == 0:
                save_checkpoint(
                    checkpoint, settings, trainable, optimizer, step, figures["seconds"]
                )
            if on_step is not None:
                on_step(step, figures)
        save_checkpoint(
            checkpoint, settings, trainable, optimizer, step, time.monotonic() - started
        )
        if held_out:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.bf16):
                accuracy = evaluate(model, held_out, settings.batch_size)
            print(json.dumps({"step": step, "held_out": accuracy}), file=log)
            Console(stderr=True).print(_describe(accuracy))
    write_adapter(model, adapter)
    return adapter


def _learning_rates(settings: TrainSettings, names: Iterable[str]) -> dict[float, list[str]]:
    """Parameters by their learning rate."""
    streams = settings.stream_learning_rate or settings.learning_rate
    embeddings = settings.embedding_learning_rate or streams
    rates: dict[float, list[str]] = {}
    for name in names:
        rate = settings.learning_rate if name.startswith("base.") else streams
        rates.setdefault(embeddings if name == "streams.embeddings" else rate, []).append(name)
    return rates


def _start_from(model: SpeculativeStreamingModel, base: Path, adapter: Path) -> None:
    """Copy the trained weights of another adapter of the same shape."""
    state = load_adapter(base, adapter).state_dict()
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in wanted.items():
        found = tuple(state[name].shape) if name in state else "none"
        if found != tuple(parameter.shape):
            raise SettingsError(
                f"init_adapter {adapter}: {name} has shape {found}, "
                f"expected {tuple(parameter.shape)}"
            )
    model.load_state_dict({name: state[name] for name in wanted}, strict=False)


def evaluate(
    model: SpeculativeStreamingModel, items: list[Item], batch_size: int
) -> dict[str, Any]:
    """Top-1 accuracy of main stream, streams and pruner, given the true tokens before.

    Returns:
        ``main``, ``streams`` (a list), ``pruner``, and ``chain``: the mean of 1 + the streams right
        in a row, the accepted length of a chain draft as far as the target agrees with the data.
    """
    device = next(model.parameters()).device
    correct = counts = 0
    ordered = sorted(items, key=lambda item: len(item.tokens))
    for start in range(0, len(ordered), batch_size):
        batch = _to(collate(ordered[start : start + batch_size]), device)
        hits, of = count_correct(model, batch)
        correct, counts = correct + hits, counts + of
    main, *streams, pruner, chain = (correct / counts.clamp(min=1)).tolist()
    return {"main": main, "streams": streams, "pruner": pruner, "chain": chain}


def _describe(accuracy: dict[str, Any]) -> str:
    streams = ", ".join(f"{j}: {value:.1%}" for j, value in enumerate(accuracy["streams"], 1))
    return (
        f"held-out top-1: main {accuracy['main']:.1%}; streams {streams}; "
        f"pruner {accuracy['pruner']:.1%}; chain {accuracy['chain']:.2f} tokens"
    )


def _load_items(settings: TrainSettings) -> tuple[list[Item], list[Item]]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise FormatError(f"{settings.model} has no readable tokenizer: {reason}") from None
    if tokenizer.eos_token_id is None:
        raise FormatError(f"the tokenizer of {settings.model} has no end token")
    sets = []
    for path in (settings.data, settings.valid_data):
        if path is None:
            sets.append([])
            continue
        pairs = read_pairs(path)
        items = tokenize(pairs, tokenizer, settings.prompt_template, settings.max_seq_length)
        if len(items) < len(pairs):
            left_out = len(pairs) - len(items)
            note = f"{path}: {left_out} items over {settings.max_seq_length} tokens left out"
            print(note, file=sys.stderr)
        sets.append(items)
    return sets[0], sets[1]


def _batches(
    items: list[Item], settings: TrainSettings, step: int, per_epoch: int
) -> Iterator[Batch]:
    """Batches without end, from number ``step`` on."""
    for number in count(step // per_epoch):
        batches = epoch(items, settings.batch_size, settings.seed + number)
        yield from islice(batches, step % per_epoch if number == step // per_epoch else 0, None)


def _warm_up_steps(iters: int | None) -> int:
    return max(1, round(WARM_UP * iters)) if iters else 20


def _to(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(getattr(batch, field.name).to(device) for field in fields(batch)))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory, as a training step frees and takes the same gigabyte over and
    over: handing it back and forth to the kernel takes as long as the arithmetic on a CPU."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-4, 0)  # M_MMAP_MAX
            mallopt(-1, -1)  # M_TRIM_THRESHOLD


@one_line_errors
def main(
    model: Annotated[Path, typer.Option(help="Hugging Face directory of the base.")],
    data: Annotated[Path, typer.Option(help='JSONL of {"prompt": ..., "completion": ...}.')],
    output: Annotated[Path, typer.Option(help="Directory for adapter, log and checkpoint.")],
    valid_data: Annotated[Path | None, typer.Option(help="Held-out JSONL.")] = None,
    init_adapter: Annotated[
        Path | None, typer.Option(help="Adapter directory to start from.")
    ] = None,
    prompt_template: Annotated[
        str | None, typer.Option(help="Text with {text} where the prompt goes.")
    ] = None,
    mode: Annotated[str, typer.Option(help="lossless or shared.")] = "lossless",
    num_streams: Annotated[int, typer.Option(help="Streams per position, gamma.")] = 4,
    num_msa_layers: Annotated[int, typer.Option(help="Top layers with streams, N_s.")] = 4,
    stream_init: Annotated[
        str, typer.Option(help="identity, linear or value_rotation.")
    ] = "identity",
    stream_init_rank: Annotated[int | None, typer.Option(help="eta of linear; 8.")] = None,
    value_rotation_epsilon: Annotated[float, typer.Option(help="Angle, radians.")] = 0.0,
    stream_mlp: Annotated[
        str | None, typer.Option(help="base, adapter or base+adapter; by mode.")
    ] = None,
    stream_adapter_rank: Annotated[int | None, typer.Option(help="8, if there are any.")] = None,
    pruner_rank: Annotated[int, typer.Option(help="0 for no pruner.")] = 8,
    pruner_form: Annotated[str, typer.Option(help="residual or literal.")] = "residual",
    alpha_main: Annotated[float | None, typer.Option(help="1 shared, 0 lossless.")] = None,
    alpha_streams: Annotated[float | None, typer.Option(help="0.1 shared, 1 lossless.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Shared mode; 8.")] = None,
    lora_alpha: Annotated[float | None, typer.Option(help="Twice the rank.")] = None,
    lora_layers: Annotated[int | None, typer.Option(help="Top layers with LoRA; all.")] = None,
    lora_targets: Annotated[
        str | None, typer.Option(help="Linear layers with LoRA, by commas; all.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW; falls to 0 linearly.")] = 5e-4,
    stream_learning_rate: Annotated[
        float | None, typer.Option(help="Of streams and pruner; the same.")
    ] = None,
    embedding_learning_rate: Annotated[
        float | None, typer.Option(help="Of the stream embeddings alone; that of the streams.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 0.0,
    max_grad_norm: Annotated[float, typer.Option(help="Gradients are clipped to it.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Sequences per step.")] = 32,
    iters: Annotated[int | None, typer.Option(help="Steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; 1.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Minutes.")] = None,
    max_seq_length: Annotated[int, typer.Option(help="Longer items are left out.")] = 1024,
    segments: Annotated[int, typer.Option(help="Pieces of a completion, to save memory.")] = 1,
    bf16: Annotated[bool, typer.Option(help="bf16 autocast.")] = True,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 0,
    log_every: Annotated[int, typer.Option(help="Steps between log lines.")] = 10,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint.")] = False,
) -> None:
    """Train streams, pruner and (in shared mode) LoRA on a language model."""
    values = dict(locals())
    if lora_targets is not None:
        values["lora_targets"] = tuple(lora_targets.split(","))
    print(train(TrainSettings(**values)))


if __name__ == "__main__":
    typer.run(main)
