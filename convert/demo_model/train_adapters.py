"""Train the demonstration model's streams and adapters.

    python -m specstream_mlx.convert.demo_model.train_adapters --work runs/adapters \\
        base streams proofread sql summarize describe

The named parts are made one after the other, and those that are finished are skipped, so the same
command resumes. ``base`` writes the base's quantized values as float32, which PyTorch trains on:
streams must predict what the quantized base writes. ``answers`` lets the base ask itself and
answer, which ``streams`` trains the lossless streams on, or else on the answers of the source. A
task's name trains that task's LoRA, alone, lets the tuned base answer, and trains lossless streams
on that, which leave its text as it is. The tasks' text comes from the mixture, under the base's
chat template with the task's instruction.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from mlx_lm.utils import dequantize_model, load, save
from rich.console import Console

from specstream_mlx import demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.adapters.torch_files import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_CONFIG,
    STREAM_TENSORS,
)
from specstream_mlx.checked_files import read_json
from specstream_mlx.config import UserError
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, POSITIVE, integer
from specstream_mlx.staging import staged_directory, staged_file
from specstream_mlx.terminal.commands import program

from ..pytorch.generation import Writer
from ..pytorch.load import has_lora
from ..pytorch.lora_settings import LoraSettings
from ..pytorch.lora_trainer import train_lora
from ..pytorch.trainer import train
from ..pytorch.training_data import read_pairs
from ..pytorch.training_settings import TrainSettings
from ..to_pytorch import convert_to_pytorch
from . import mixture, tasks
from .own_answers import TRAIN, VALID, write_answers_of, write_own_answers

STREAMS, BASE, OWN_ANSWERS = "streams", "base", "answers"
PARTS = BASE, OWN_ANSWERS, STREAMS, *tasks.TASKS
SAVE_STEPS = 50
"""Steps between two checkpoints."""
STREAM_SHAPE: dict[str, Any] = {
    "num_msa_layers": 8,
    "stream_init_rank": 128,
    "stream_head_rank": 224,
    "stream_adapter_rank": 16,
}
"""Of the lossless streams, which may take 1.5 MB."""
LORA_RANK = 4
TASK_SHAPE: dict[str, Any] = {
    "num_msa_layers": 4,
    "stream_init_rank": 64,
    "stream_head_rank": 64,
    "stream_adapter_rank": 8,
}
"""Of an adapter, which may take 3 MiB."""
ANSWERS = Path(__file__).parent / "text" / "answers"
DRAFT_VOCABULARY = 11_264
"""One call of the whole head is a fifth of the base's plain step; adapters stay below 3 MB."""
MOST_ANSWER_TOKENS, MOST_TASK_TOKENS = 512, 384
"""Of an item; longer ones are left out."""
EMBEDDING_RATE = 0.1  # high, as embeddings are added to hidden states of size 20 (RMS)
TYPED = 32
"""Typed texts that a task's LoRA and streams are tried on."""


def write_expanded(target: Path) -> None:
    """Write the demonstration model's base with its quantized values in float32."""
    base = demonstration.base_path()
    model, tokenizer, *others = load(str(base), return_config=True)
    (config,) = others
    model.set_dtype(mx.float32)  # expanding rounds to the dtype of the scales
    model = dequantize_model(model)
    plain = {name: value for name, value in config.items() if "quantization" not in name}
    with staged_directory(target) as scratch:
        save(scratch, base, model, tokenizer, plain | {"dtype": "float32"})


def write_pairs(path: Path, draw: Callable[[], list[tasks.Item]]) -> Path:
    """Write items as JSONL of prompts and completions, leaving out empty completions.

    Args:
        path: the file, which is kept if it is there already.
        draw: returns the items, of one task.

    Returns:
        ``path``.
    """
    if not path.exists():
        with staged_file(path) as partial, partial.open("w") as file:
            for item in draw():
                if item.target:
                    line = {"prompt": item.content, "completion": item.target}
                    print(json.dumps(line, ensure_ascii=False), file=file)
    return path


def drawn(task: str, count: int, seed: int) -> list[tasks.Item]:
    """``count`` training items of a task."""
    rng = random.Random(f"{task}-{seed}")
    return [mixture.draw(rng, task) for _ in range(count)]


def typed(task: str) -> list[tasks.Item]:
    """Texts that people typed for development, with the first of the accepted answers."""
    return [answers[0] for answers in tasks.typed_dev(task, TYPED)]


@dataclass(frozen=True)
class MakingOptions:
    """The options of every part."""

    work: Path = option(..., PATH, "Directory that everything is written to.")
    answers: Path | None = option(
        None,
        PATH,
        "Directory with answers of the base, for its streams. Default: those of part answers, or "
        "else those that come with the source.",
    )
    minutes: float | None = option(None, POSITIVE, "Wall time of each training.")
    iters: int | None = option(
        None, integer(1), "Steps for each part. Default, without --minutes: one epoch."
    )
    start: Path | None = option(
        None, PATH, "Adapter, in either format, whose streams the parts start from."
    )
    items: int = option(6000, integer(1), "Training items of a task; the streams take all answers.")
    task_answers: int = option(
        1200,
        integer(0),
        "Texts that a task's tuned base answers, for its streams to learn from; 0: they learn from "
        "the training items.",
    )
    own_prompts: int = option(6000, integer(2), "Prompts that the base draws, for part answers.")
    batch_size: int | None = option(
        None, integer(1), "Items of an update. Default: 16 for LoRA, 8 for streams."
    )
    seed: int = option(0, integer(0), "Seed of the text and of the new weights.")


def training_items(task: str, options: MakingOptions) -> Path:
    """The file of a task's training items, which is written if it is missing."""
    draw = partial(drawn, task, options.items, options.seed)
    return write_pairs(options.work / f"{task}.jsonl", draw)


def unseen(task: str, options: MakingOptions) -> list[str]:
    """Different texts that a task's LoRA has not learned from, which it may know by heart.

    Returns:
        ``task_answers`` texts, or fewer, where the mixture hardly has others.
    """
    known = {pair.prompt for pair in read_pairs(training_items(task, options))}
    rng, found = random.Random(f"{task}-{options.seed + 1}"), dict[str, None]()
    for _ in range(10 * options.task_answers):
        if len(found) == options.task_answers:
            break
        content = mixture.draw(rng, task).content
        if content not in known:
            found[content] = None
    return list(found)


def common_settings(part: str, options: MakingOptions) -> dict[str, Any]:
    """The settings of a part that are the same whatever is trained; its data is written."""
    work = options.work
    values: dict[str, Any] = {
        "model": work / "expanded",
        "batch_size": options.batch_size or 8,
        "max_seq_length": MOST_ANSWER_TOKENS if part == STREAMS else MOST_TASK_TOKENS,
        "time_limit": options.minutes,
        "iters": options.iters,
        "seed": options.seed,
        "save_every": SAVE_STEPS,
    }
    if part == STREAMS:
        own = work / OWN_ANSWERS
        answers = options.answers or (own if own.exists() else ANSWERS)
        return values | {"data": answers / TRAIN, "valid_data": answers / VALID}
    return values | {
        "data": training_items(part, options),
        "valid_data": write_pairs(work / f"{part}-typed.jsonl", partial(typed, part)),
        "prompt_template": tasks.prompt_template(part),
    }


def lora_settings(task: str, options: MakingOptions) -> LoraSettings:
    """The settings with which a task's LoRA is trained; its data is written if it is missing."""
    output = options.work / f"{task}-lora"
    values = common_settings(task, options) | {"output": output}
    values["batch_size"] = options.batch_size or 16
    resume = (output / "checkpoint.pt").exists()
    return LoraSettings(lora_rank=LORA_RANK, resume=resume, **values)


def stream_settings(part: str, options: MakingOptions, start: Path | None) -> TrainSettings:
    """The settings with which streams are trained; their data is written if it is missing.

    Args:
        part: ``streams`` or the name of a task.
        options: of all parts.
        start: what they start from, in the trainer's format: of a task its LoRA, with streams or
            without.
    """
    output = options.work / part
    warm = start is not None and describe(start).stream_config is not None
    values = common_settings(part, options) | {
        "output": output,
        "mode": "lossless",
        "num_streams": 4,
        "stream_init": "linear",
        "stream_mlp": "adapter",
        "stream_head": "conditioned",
        "draft_vocabulary": DRAFT_VOCABULARY,
        "pruner_rank": 0,  # streams are deferred, and a tree of few nodes needs no pruning
        "keep_hidden": True,
        "resume": (output / "checkpoint.pt").exists(),
        "init_adapter": start,
        "embedding_learning_rate": EMBEDDING_RATE / (5 if warm else 1),
    }
    if part != STREAMS and options.task_answers:
        answers = options.work / f"{part}-answers"
        values |= {"data": answers / TRAIN, "valid_data": answers / VALID}
    return TrainSettings(**values | (STREAM_SHAPE if part == STREAMS else TASK_SHAPE))


def with_streams(lora: Path, streams: Path, target: Path) -> Path:
    """Write an adapter of the LoRA of one and the streams of another, which become lossless.

    Args:
        lora, streams: adapters in the trainer's format.
        target: directory to write; if it is there it is kept.

    Returns:
        ``target``.
    """
    if not target.exists():
        with staged_directory(target) as scratch:
            for name in (LORA_CONFIG, LORA_TENSORS):
                shutil.copy(lora / name, scratch)
            shutil.copy(streams / STREAM_TENSORS, scratch)
            config = read_json(streams / STREAM_CONFIG) | {"mode": "lossless"}
            (scratch / STREAM_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return target


def start_of(part: str, options: MakingOptions) -> Path | None:
    """What the streams of a part start from, in the trainer's format; a task's LoRA is trained.

    Returns:
        ``None``: nothing.
    """
    start = options.start
    if start is not None and describe(start).format == "mlx":
        target = options.work / f"{part}-start"
        if not target.exists():
            convert_to_pytorch(start, options.work / "expanded", target)
        start = target
    if part == STREAMS:
        if start is not None and has_lora(start):
            raise UserError(f"{options.start} has LoRA, expected streams alone for the base's")
        return start
    if start is not None and describe(start).stream_config is None:
        raise UserError(f"{options.start} has no streams, expected some to start from")
    lora = options.work / f"{part}-lora" / "adapter"
    if not lora.exists():
        train_lora(lora_settings(part, options))
    if options.task_answers:
        writer = Writer(options.work / "expanded", lora)
        write_answers_of(writer, options.work / f"{part}-answers", part, unseen(part, options))
    return with_streams(lora, start, options.work / f"{part}-first") if start else lora


def main(
    parts: Annotated[
        list[str], typer.Argument(help="Parts to make: base, answers, streams, names of tasks.")
    ],
    *,
    options: MakingOptions,
) -> None:
    """Train streams and adapters for the demonstration model (resumable)."""
    work, console = options.work, Console(stderr=True)
    expanded = work / "expanded" / "config.json"
    for part in parts:
        if part in PARTS and part != BASE and not expanded.exists():
            raise UserError(f"{expanded.parent} does not exist, expected part base before {part}")
        if part == BASE:
            if not expanded.exists():
                write_expanded(work / "expanded")
        elif part == OWN_ANSWERS:
            if not (work / part).exists():
                writer = Writer(work / "expanded")
                write_own_answers(writer, work / part, options.own_prompts, options.seed)
        elif part in PARTS:
            if not (work / part / "adapter").exists():
                train(stream_settings(part, options, start_of(part, options)))
        else:
            raise UserError(f"unknown part {part!r}, expected {', '.join(PARTS)}")
        console.print(f"{part}: done")


if __name__ == "__main__":
    program(main)()
