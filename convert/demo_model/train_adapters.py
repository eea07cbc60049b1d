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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import dequantize_model, load, save
from rich.console import Console

from specstream_mlx import demonstration
from specstream_mlx.adapters.description import describe
from specstream_mlx.errors import UserError
from specstream_mlx.files import staged_directory, staged_file
from specstream_mlx.options import PATH, POSITIVE, TEXTS, integer, option
from specstream_mlx.terminal.commands import program

from ..pytorch.generation import Writer
from ..pytorch.lora_trainer import train_lora
from ..pytorch.trainer import train
from ..pytorch.training_data import read_pairs
from ..pytorch.training_settings import LoraSettings, TrainSettings
from ..to_pytorch import convert_to_pytorch
from . import mixture, tasks
from .longer_inputs import longer
from .own_answers import TRAIN, VALID, write_answers_of, write_own_answers, write_prompted_answers

STREAMS, BASE, OWN_ANSWERS = "streams", "base", "answers"
PARTS = BASE, OWN_ANSWERS, STREAMS, *tasks.TASKS
STREAM_SHAPE: dict[str, Any] = {
    "num_msa_layers": 12,
    "stream_init_rank": 128,
    "stream_head_rank": 224,
    "stream_adapter_rank": 10,
}
"""Of the lossless streams, which may take 1.5 MB."""
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
MOST_ANSWER_TOKENS = MOST_TASK_TOKENS = 1024
"""Of an item; longer ones are left out."""
_LONGER = 0.5
"""Share of the texts that a tuned base answers which are letters, lists and the like."""
_LORA_RANK = 4
_EMBEDDING_RATE = 0.1  # high, as embeddings are added to hidden states of size 20 (RMS)
_SAVE_STEPS = 50
_TYPED = 32
"""Typed texts that a task's LoRA and streams are tried on."""


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
        None, PATH, "Adapter, in either format, that part streams starts from."
    )
    items: int = option(6000, integer(1), "Training items of a task; the streams take all answers.")
    task_answers: int = option(
        1200, integer(2), "Texts that a task's tuned base answers, for its streams to learn from."
    )
    own_prompts: int = option(6000, integer(2), "Prompts that the base draws, for part answers.")
    batch_size: int | None = option(
        None, integer(1), "Items of an update. Default: 16 for LoRA, 8 for streams."
    )
    prompts: Path | None = option(
        None,
        PATH,
        "Directory with train.jsonl and valid.jsonl of prompts that people wrote, which part "
        "answers adds to the base's own.",
    )
    seed: int = option(0, integer(0), "Seed of the text and of the new weights.")


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


def _write_pairs(path: Path, items: Iterable[tasks.Item]) -> None:
    """Write items as JSONL of prompts and completions, leaving out empty completions."""
    with staged_file(path) as scratch, scratch.open("w") as file:
        for item in items:
            if item.target:
                line = {"prompt": item.content, "completion": item.target}
                print(json.dumps(line, ensure_ascii=False), file=file)


def training_items(task: str, options: MakingOptions) -> Path:
    """The file of a task's training items, which is written if it is missing."""
    path = options.work / f"{task}.jsonl"
    if not path.exists():
        rng = random.Random(f"{task}-{options.seed}")
        _write_pairs(path, (mixture.draw(rng, task) for _ in range(options.items)))
    return path


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
        long = rng.random() < _LONGER
        content = longer(rng, task) if long else mixture.draw(rng, task).content
        if content not in known:
            found[content] = None
    return list(found)


def _common(output: Path, options: MakingOptions) -> dict[str, Any]:
    """The settings that are the same whatever is trained."""
    return {
        "output": output,
        "model": options.work / "expanded",
        "time_limit": options.minutes,
        "iters": options.iters,
        "seed": options.seed,
        "save_every": _SAVE_STEPS,
        "resume": (output / "checkpoint.pt").exists(),
    }


def lora_settings(task: str, options: MakingOptions) -> LoraSettings:
    """The settings with which a task's LoRA is trained; its data is written if it is missing."""
    typed = options.work / f"{task}-typed.jsonl"
    if not typed.exists():
        _write_pairs(typed, (answers[0] for answers in tasks.typed_dev(task, _TYPED)))
    return LoraSettings(
        **_common(options.work / f"{task}-lora", options),
        data=training_items(task, options),
        valid_data=typed,
        prompt_template=tasks.prompt_template(task),
        lora_rank=_LORA_RANK,
        batch_size=options.batch_size or 16,
        max_seq_length=MOST_TASK_TOKENS,
    )


def stream_settings(part: str, options: MakingOptions, start: Path | None) -> TrainSettings:
    """The settings with which streams are trained.

    Args:
        part: ``streams`` or the name of a task.
        options: of all parts.
        start: what they start from, in the trainer's format: of a task its LoRA.
    """
    values: dict[str, Any] = _common(options.work / part, options)
    if part == STREAMS:
        own = options.work / OWN_ANSWERS
        answers = options.answers or (own if own.exists() else ANSWERS)
        values |= {"max_seq_length": MOST_ANSWER_TOKENS, **STREAM_SHAPE}
    else:
        answers = options.work / f"{part}-answers"
        values |= {"max_seq_length": MOST_TASK_TOKENS, **TASK_SHAPE}
        values["prompt_template"] = tasks.prompt_template(part)
    goes_on = start is not None and describe(start).stream_config is not None
    return TrainSettings(
        **values,
        data=answers / TRAIN,
        valid_data=answers / VALID,
        batch_size=options.batch_size or 8,
        mode="lossless",
        num_streams=4,
        stream_init="linear",
        stream_mlp="adapter",
        stream_head="conditioned",
        draft_vocabulary=DRAFT_VOCABULARY,
        pruner_rank=0,  # a tree of few nodes needs no pruning
        init_adapter=start,
        embedding_learning_rate=_EMBEDDING_RATE / (5 if goes_on else 1),
    )


def _start_of_streams(options: MakingOptions) -> Path | None:
    """What part ``streams`` starts from, in the trainer's format; ``None``: nothing."""
    start = options.start
    if start is None or describe(start).format != "mlx":
        return start
    target = options.work / "streams-start"
    if not target.exists():
        convert_to_pytorch(start, options.work / "expanded", target)
    return target


def _tuned(task: str, options: MakingOptions) -> Path:
    """A task's LoRA, trained, with whose base the answers are written that its streams need."""
    lora = options.work / f"{task}-lora" / "adapter"
    if not lora.exists():
        train_lora(lora_settings(task, options))
    writer = Writer(options.work / "expanded", lora)
    write_answers_of(writer, options.work / f"{task}-answers", task, unseen(task, options))
    return lora


def write_answers(options: MakingOptions) -> None:
    """Write the base's answers to its own prompts, and to those that people wrote."""
    answers = options.work / OWN_ANSWERS
    writer = Writer(options.work / "expanded")
    if options.prompts is None:
        write_own_answers(writer, answers, options.own_prompts, options.seed)
        return
    own, prompted = options.work / "own-answers", options.work / "prompted-answers"
    if not own.exists():
        write_own_answers(writer, own, options.own_prompts, options.seed)
    for name in (TRAIN, VALID):
        if not (prompted / name).exists():
            write_prompted_answers(writer, options.prompts / name, prompted / name, options.seed)
    with staged_directory(answers) as scratch:
        for name in (TRAIN, VALID):
            (scratch / name).write_text((own / name).read_text() + (prompted / name).read_text())


def main(
    *,
    parts: list[str] = option(
        ...,
        TEXTS,
        "Parts to make: base, answers, streams, names of tasks.",
        metavar="PART",
        positional=True,
    ),
    options: MakingOptions,
) -> None:
    """Train streams and adapters for the demonstration model (resumable)."""
    work, console = options.work, Console(stderr=True)
    expanded = work / "expanded"
    for part in parts:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}, expected {', '.join(PARTS)}")
        if part == BASE:
            if not expanded.exists():
                write_expanded(expanded)
        elif not expanded.exists():
            raise UserError(f"{expanded} does not exist, expected part base before {part}")
        elif part == OWN_ANSWERS:
            if not (work / part).exists():
                write_answers(options)
        elif not (work / part / "adapter").exists():
            start = _start_of_streams(options) if part == STREAMS else _tuned(part, options)
            train(stream_settings(part, options, start))
        console.print(f"{part}: done")


if __name__ == "__main__":
    program(main)()
