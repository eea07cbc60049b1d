"""The trainer of streams, pruner and (in shared mode) LoRA: arXiv 2402.11131, sections 3 and 4.

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode shared --output OUT --epochs 2

It writes the adapter directory ``OUT/adapter`` (see ``adapter_files``), the log ``OUT/log.jsonl``
and the checkpoint ``OUT/checkpoint.pt``, from which ``--resume`` continues. Without it an output
directory that holds an earlier run is refused.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

try:
    import torch
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    print(
        f"error: training needs {error.name}: pip install 'specstream-mlx[torch]'", file=sys.stderr
    )
    sys.exit(2)
from transformers import AutoTokenizer

from specstream_mlx.checked_files import check_tokens, tokenizer_files
from specstream_mlx.config import UserError, shown
from specstream_mlx.staging import append
from specstream_mlx.stream_config import StreamConfig
from specstream_mlx.terminal.commands import grouped, program
from specstream_mlx.terminal.errors import one_line_errors
from specstream_mlx.terminal.notes import note
from specstream_mlx.terminal.progress import progress, track
from specstream_mlx.train.items import Batches, Item, most_frequent
from specstream_mlx.train.stream_settings import LearningRates

from .adapter_files import check_replaceable, write_adapter
from .backbone import linear_layers
from .checkpoint import Checkpoint
from .kept_hidden import KeptHidden
from .load import base_fingerprint, load_adapter, load_base
from .losses import Batch, count_correct, n_gram_loss
from .reference import SpeculativeStreamingModel
from .training_data import collate, read_pairs, tokenize
from .training_settings import TrainSettings

_WARM_UP = 0.03
"""The share of the steps in which the learning rate rises."""


def build_model(settings: TrainSettings) -> SpeculativeStreamingModel:
    """Build the untrained model of a run, its new weights drawn from torch's generator.

    Raises:
        UserError: the base cannot be loaded, or a setting does not fit it.
    """
    base = load_base(settings.model, settings.dtype)
    settings.check_vocabulary(base.config.vocab_size)
    config = settings.stream_config(
        hidden_size=base.config.hidden_size,
        num_hidden_layers=base.config.num_hidden_layers,
        base_model=str(settings.model),
        base_fingerprint=base_fingerprint(settings.model),
    )
    if settings.mode == "shared":
        layers = config.num_hidden_layers
        if (settings.lora_layers or 0) > layers:
            raise UserError(
                f"lora_layers is {settings.lora_layers}, expected at most the base's {layers}"
            )
        linear = linear_layers(base)
        for target in settings.lora_targets or ():
            if target not in linear:
                raise UserError(
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
    """Train an adapter and write it.

    Args:
        settings: the run's settings.
        on_step: called after every step with the number of steps done and a line of the log.

    Returns:
        The adapter directory, ``settings.output / "adapter"``.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    adapter, checkpoint, log = (
        settings.output / name for name in ("adapter", "checkpoint.pt", "log.jsonl")
    )
    check_replaceable(adapter)
    if not settings.resume:
        _check_new(settings.output, adapter, checkpoint, log)
    _keep_freed_memory()
    torch.manual_seed(settings.seed)
    model = build_model(settings)
    if settings.init_adapter and not settings.resume:
        _start_from(model, settings)
    items, held_out = _load_items(settings, model.backbone.config.vocab_size)
    if settings.draft_vocabulary:
        frequent = most_frequent(items, settings.draft_vocabulary, model.backbone.config.vocab_size)
        model.streams.vocabulary.copy_(torch.tensor(frequent))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    bf16 = settings.bf16
    if bf16 is None:
        bf16 = settings.dtype == "bfloat16" or is_quick_in_bf16(device)
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if settings.train == "head":
        model.freeze_all_but_head()
    trainable = {name: p for name, p in weights.items() if p.requires_grad}
    if not trainable:
        raise UserError("nothing to train: expected stream embeddings, adapters, a pruner or LoRA")
    peaks = settings.learning_rates(model.config.hidden_size)
    rates = _by_rate(peaks, trainable)
    groups = [{"params": [trainable[name] for name in names]} for names in rates.values()]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    pruner = [p for name, p in trainable.items() if name.startswith("pruner.")]
    others = [p for name, p in trainable.items() if not name.startswith("pruner.")]
    alphas = settings.alphas(settings.num_streams)

    state = Checkpoint(checkpoint, settings, weights, optimizer)
    step, elapsed_before = 0, 0.0
    if settings.resume:
        step, elapsed_before = state.load()
    else:  # so that a run that stops early can be resumed, and no other one takes the directory
        state.save(0, 0.0, replace=False)
    batches = Batches(items, settings.batch_size, settings.seed)
    kept = KeptHidden(model) if settings.keep_hidden else None
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
            factor = min(1.0, (step + 1) / _warm_up_steps(iters)) * (1 - fraction)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            batch = _to(collate(drawn), device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                seed = None if kept is None else kept.of(drawn, batch)
                loss = n_gram_loss(model, batch, alphas, settings.segments, seed)
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
                "learning_rate": peaks.streams * factor,
                "seconds": time.monotonic() - started,
            }
            if step % settings.log_every == 0 or step == iters:
                append(log, json.dumps(figures) + "\n")
            show(done(), 1.0, f"loss {figures['loss']:.3f}")
            if step % settings.save_every == 0:
                state.save(step, figures["seconds"])
            if on_step is not None:
                on_step(step, figures)
    state.save(step, time.monotonic() - started)
    if held_out:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            accuracy = evaluate(model, held_out, settings.batch_size)
        append(log, json.dumps({"step": step, "held_out": accuracy}) + "\n")
        note(_describe(accuracy))
    write_adapter(model, adapter)
    return adapter


def is_quick_in_bf16(device: torch.device) -> bool:
    """Tell whether a device has instructions for bfloat16, which is many times as slow without."""
    return device.type != "cpu" or torch.cpu.get_capabilities().get("avx512_bf16", False)


def _check_new(output: Path, *parts: Path) -> None:
    """Check that none of a run's files is there."""
    for path in parts:
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UserError(
                f"{output} holds {path.name} of an earlier run, expected --resume to continue it "
                "or another --output"
            )


def _by_rate(peaks: LearningRates, names: Iterable[str]) -> dict[float, list[str]]:
    """The names of the parameters by learning rate."""
    rates: dict[float, list[str]] = {}
    for name in names:
        rate = peaks.lora if name.startswith("base.") else peaks.streams
        if name == "streams.embeddings":
            rate = peaks.embeddings
        rates.setdefault(rate, []).append(name)
    return rates


def _start_from(model: SpeculativeStreamingModel, settings: TrainSettings) -> None:
    """Copy the weights of ``init_adapter``, which must be of the same shape, into a model.

    A conditioned head is left as it is where the adapter's is plain.
    """
    adapter = settings.init_adapter
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
        ``chain``: tokens that a chain draft would gain per step if the text were the data's.
    """
    device = next(model.parameters()).device
    correct = counts = 0
    ordered = sorted(items, key=lambda item: len(item.tokens))
    for start in track(range(0, len(ordered), batch_size), "held-out text"):
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


def _load_items(settings: TrainSettings, vocab_size: int) -> tuple[list[Item], list[Item]]:
    with tokenizer_files(settings.model):
        tokenizer = AutoTokenizer.from_pretrained(
            settings.model, local_files_only=True, trust_remote_code=False
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {settings.model} has no end token")
    sets = []
    for path in (settings.data, settings.valid_data):
        if path is None:
            sets.append([])
            continue
        pairs = read_pairs(path)
        items = tokenize(pairs, tokenizer, settings.prompt_template, settings.max_seq_length)
        for item in items:
            check_tokens(f"{path}, in tokens,", item.tokens, vocab_size)
        if len(items) < len(pairs):
            left_out = len(pairs) - len(items)
            note(f"{path}: {left_out} items over {settings.max_seq_length} tokens left out")
        sets.append(items)
    return sets[0], sets[1]


def _warm_up_steps(iters: int | None) -> int:
    return max(1, round(_WARM_UP * iters)) if iters else 20


def _to(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(getattr(batch, field.name).to(device) for field in fields(batch)))


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory, which every training step needs again.

    Giving a gigabyte back to the kernel at every step takes as long as the arithmetic on a CPU.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-4, 0)  # M_MMAP_MAX
            mallopt(-1, -1)  # M_TRIM_THRESHOLD


@one_line_errors
@grouped(hidden=True)
def main(settings: TrainSettings) -> None:
    """Train streams, pruner and (in shared mode) LoRA on a language model."""
    print(train(settings))


if __name__ == "__main__":
    program(main)()
