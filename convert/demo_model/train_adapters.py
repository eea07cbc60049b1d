"""Train the demonstration model's streams and adapters.

    python -m specstream_mlx.convert.demo_model.train_adapters --work runs/adapters \\
        base streams shared proofread sql summarize describe

The named parts are made one after the other, and those that are finished are skipped, so the same
command resumes. ``base`` writes the base's quantized values as float32, which PyTorch trains on:
streams must predict what the quantized base writes. ``streams`` trains the lossless streams on the
base's own answers. ``shared`` trains one shared-mode adapter on all tasks, which is not shipped:
the tasks' adapters start from it. A task's name trains that task's adapter. The tasks' text comes
from the mixture, under the base's chat template with the task's instruction.
"""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
)

import mlx.core as mx
import typer
from mlx_lm.utils import dequantize_model, load, save
from rich.console import Console

from specstream_mlx import demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.config import UserError
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, POSITIVE, integer
from specstream_mlx.staging import staged_directory, staged_file
from specstream_mlx.terminal.commands import program

from ..pytorch.trainer import train
from ..pytorch.training_settings import TrainSettings
from ..to_pytorch import convert_to_pytorch
from . import mixture, tasks

STREAMS, SHARED, BASE = "streams", "shared", "base"
PARTS = BASE, STREAMS, SHARED, *tasks.TASKS
SAVE_STEPS = 50
"""Steps between two checkpoints."""
STREAM_RANKS: dict[str, Any] = {"stream_init_rank": 256, "stream_head_rank": 192}
"""Of the lossless streams, which may take 1.5 MB."""
TASK_RANKS: dict[str, Any] = {"lora_rank": 4, "stream_init_rank": 64, "stream_head_rank": 64}
"""Of an adapter, which may take 3 MiB."""
ANSWERS = Path(__file__).parent / "text" / "answers"
DRAFT_VOCABULARY = 11_264
"""One call of the whole head is a fifth of the base's plain step; adapters stay below 3 MB."""
MOST_TOKENS = {"lossless": 512, "shared": 384}
EMBEDDING_RATE = 0.1  # high, as embeddings are added to hidden states of size 20 (RMS)
TYPED_TOGETHER, TYPED_ALONE = 12, 32
"""Typed texts of each task that the adapter of all tasks, and a task's own, is tried on."""


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


def write_pairs(path: Path, items: list[tasks.Item], *, instructed: bool) -> Path:
    """Write items as JSONL of prompts and completions, leaving out empty completions.

    Args:
        path: the file, which is kept if it is there already.
        items: of one task or several.
        instructed: whether the prompts have the tasks' instructions.

    Returns:
        ``path``.
    """
    if not path.exists():
        with staged_file(path) as partial, partial.open("w") as file:
            for item in items:
                prompt = tasks.instructed(item) if instructed else item.content
                if item.target:
                    line = {"prompt": prompt, "completion": item.target}
                    print(json.dumps(line, ensure_ascii=False), file=file)
    return path


def drawn(part: str, count: int, seed: int) -> list[tasks.Item]:
    """``count`` training items of a part: of its task, or of all tasks in turn."""
    rng, names = random.Random(f"{part}-{seed}"), list(tasks.TASKS)
    wanted = names if part == SHARED else [part]
    return [mixture.draw(rng, wanted[place % len(wanted)]) for place in range(count)]


def typed(part: str) -> list[tasks.Item]:
    """Texts that people typed for development, with the first of the accepted answers."""
    names = list(tasks.TASKS) if part == SHARED else [part]
    count = TYPED_TOGETHER if part == SHARED else TYPED_ALONE
    return [answers[0] for name in names for answers in tasks.typed_dev(name, count)]


@dataclass(frozen=True)
class MakingOptions:
    """The options of every part."""

    work: Path = option(..., PATH, "Directory that everything is written to.")
    answers: Path = option(ANSWERS, PATH, "Directory with answers of the base, for the streams.")
    minutes: float | None = option(None, POSITIVE, "Wall time for each part.")
    iters: int | None = option(
        None, integer(1), "Steps for each part. Default, without --minutes: one epoch."
    )
    start: Path | None = option(
        None,
        PATH,
        "Adapter that the parts start from, in either format. Default: for tasks the part shared, "
        "if it is there.",
    )
    items: int = option(6000, integer(1), "Training items of a part; the streams take all answers.")
    seed: int = option(0, integer(0), "Seed of the text and of the new weights.")


def settings_of(part: str, options: MakingOptions) -> TrainSettings:
    """The settings with which a part is trained; its data is written if it is missing.

    Args:
        part: ``streams``, ``shared`` or the name of a task.
        options: of all parts; ``start`` is in the trainer's format.
    """
    work, start, one_task = options.work, options.start, part in tasks.TASKS
    mode = "lossless" if part == STREAMS else "shared"
    common: dict[str, Any] = {
        "model": work / "expanded",
        "output": work / part,
        "mode": mode,
        "num_streams": 4,
        "num_msa_layers": 4,
        "stream_init": "linear",
        "stream_mlp": "adapter",
        "stream_adapter_rank": 8,
        "stream_head": "conditioned",
        "draft_vocabulary": DRAFT_VOCABULARY,
        "batch_size": 8,
        "max_seq_length": MOST_TOKENS[mode],
        "time_limit": options.minutes,
        "iters": options.iters,
        "seed": options.seed,
        "save_every": SAVE_STEPS,
        "resume": (work / part / "checkpoint.pt").exists(),
        "init_adapter": start,
        "embedding_learning_rate": EMBEDDING_RATE / (5 if start else 1),
    }
    if part == STREAMS:
        return TrainSettings(
            data=options.answers / "train.jsonl",
            valid_data=options.answers / "valid.jsonl",
            pruner_rank=0,  # streams are deferred, and a tree of few nodes needs no pruning
            keep_hidden=True,
            **STREAM_RANKS,
            **common,
        )
    items = drawn(part, options.items, options.seed)
    return TrainSettings(
        data=write_pairs(work / f"{part}.jsonl", items, instructed=not one_task),
        valid_data=write_pairs(work / f"{part}-typed.jsonl", typed(part), instructed=not one_task),
        prompt_template=tasks.prompt_template(part) if one_task else None,
        learning_rate=5e-4 if start else 1e-3,
        stream_learning_rate=1e-3 if start else 2e-3,
        alpha_streams=0.15 if part == "proofread" else 0.4,  # it needs an exact main stream most
        **TASK_RANKS,
        **common,
    )


def main(
    parts: Annotated[
        list[str], typer.Argument(help="Parts to make: base, streams, shared, names of tasks.")
    ],
    *,
    options: MakingOptions,
) -> None:
    """Train streams and adapters for the demonstration model (resumable)."""
    work, console = options.work, Console(stderr=True)
    for part in parts:
        if part == BASE:
            if not (work / "expanded" / "config.json").exists():
                write_expanded(work / "expanded")
        elif part in PARTS:
            if not (work / part / "adapter").exists():
                train(settings_of(part, replace(options, start=start_of(part, options))))
        else:
            raise UserError(f"unknown part {part!r}, expected {', '.join(PARTS)}")
        console.print(f"{part}: done")


def start_of(part: str, options: MakingOptions) -> Path | None:
    """The adapter that a part starts from, in the trainer's format; ``None``: new weights."""
    shared = options.work / SHARED / "adapter"
    start = options.start or (shared if part in tasks.TASKS and shared.exists() else None)
    if start is None or describe(start).format == "pytorch":
        return start
    target = options.work / f"{part}-start"
    if not target.exists():
        convert_to_pytorch(start, options.work / "expanded", target)
    return target


if __name__ == "__main__":
    program(main)()
