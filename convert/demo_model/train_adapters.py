"""Train the demonstration model's streams and adapters, and put them into the package.

    python -m specstream_mlx.convert.demo_model.train_adapters --work runs/adapters \\
        streams proofread sql summarize describe bundle

The named parts are made one after the other, and those that are finished are skipped, so the same
command resumes. ``answers`` lets the base ask itself and answer, which ``streams`` trains the
lossless streams on, or else on the answers of the source. A task's name trains that task's LoRA
on the mixture, lets the tuned base answer, and trains lossless streams on that, which begin as the
base's do: these are made before. ``bundle`` writes ``bundled/streams`` and
``bundled/adapters/<task>``, as far as they are finished.
"""

import json
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specstream_mlx import bundled, demonstration
from specstream_mlx.adapters.description import ADAPTER_CONFIG, STREAM_KEY
from specstream_mlx.errors import UserError
from specstream_mlx.files import read_json, read_json_lines, staged_directory, staged_file
from specstream_mlx.options import PATH, POSITIVE, TEXTS, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.train.distil import read_prompts

from ..pytorch.generation import AnswerWriter
from ..pytorch.trainer import train
from ..pytorch.training_settings import TorchTrainSettings
from ..to_mlx.adapter import convert_adapter
from . import mixture, tasks
from .own_answers import TRAIN, VALID, write_answers, write_base_answers

STREAMS, OWN_ANSWERS, BUNDLE = "streams", "answers", "bundle"
PARTS = OWN_ANSWERS, STREAMS, *tasks.TASKS, BUNDLE
MOST_STREAM_BYTES, MOST_ADAPTER_BYTES = 1_500_000, 4_000_000
"""Limits of the bundled lossless streams, and of one adapter."""
ANSWERS = Path(__file__).parent / "text" / "answers"
_STREAMS = {
    "num_streams": 4,
    "stream_init": "linear",
    "stream_mlp": "adapter",
    "num_msa_layers": 12,
    "stream_init_rank": 128,
    "stream_head_rank": 224,
    "stream_adapter_rank": 10,
    "draft_vocabulary": 11_264,  # one call of the whole head is a fifth of the base's plain step
    "pruner_rank": 0,  # a tree of few nodes needs no pruning
}
_LONGER = 0.5
"""Share of letters, lists and the like among the texts that a tuned base answers."""
_LORA_RANK = 4
_EMBEDDING_RATE = 0.1  # high, as embeddings are added to hidden states of size 20 (RMS)
_LEARNING_ON = {"stream_learning_rate": 1.3e-3, "embedding_learning_rate": 0.03}
"""Learning rates of streams that begin as the base's; with twice as much they forget."""
_TASK_ANSWER_TOKENS = 320
"""Most tokens of an answer of a task's tuned base; longer ones are cut."""
_TYPED = 32
"""Typed texts that a task's LoRA is tried on."""


@dataclass(frozen=True)
class MakingOptions:
    """The options of every part."""

    work: Path = option(..., PATH, "Directory that everything is written to.")
    minutes: float | None = option(None, POSITIVE, "Wall time of each training.")
    iters: int | None = option(
        None, integer(1), "Steps for each part. Default, without --minutes: one epoch."
    )
    items: int = option(6000, integer(1), "Training items of a task; the streams take all answers.")
    task_answers: int = option(
        1200, integer(2), "Texts that a task's tuned base answers, for its streams to learn from."
    )
    task_texts: Path | None = option(
        None,
        PATH,
        "Directory with TASK.jsonl of texts that people wrote, a prompt a line: half of the "
        "texts that a task's tuned base answers.",
    )
    own_prompts: int = option(6000, integer(2), "Prompts that the base draws, for part answers.")
    batch_size: int | None = option(
        None, integer(1), "Items of an update. Default: 8 for the base's streams, else 16."
    )
    prompts: Path | None = option(
        None,
        PATH,
        "Directory with train.jsonl and valid.jsonl of prompts that people wrote, which part "
        "answers adds to the base's own.",
    )
    seed: int = option(0, integer(0), "Seed of the text and of the new weights.")


def _pairs(path: Path, items: Iterable[tasks.TaskItem]) -> Path:
    """The JSONL file of items, which is written if it is missing, without empty completions."""
    if not path.exists():
        pairs = [{"prompt": item.content, "completion": item.target} for item in items]
        lines = [json.dumps(p, ensure_ascii=False) + "\n" for p in pairs if p["completion"]]
        with staged_file(path) as scratch:
            scratch.write_text("".join(lines))
    return path


def unseen(task: str, options: MakingOptions, learned: Path) -> list[str]:
    """Texts that a task's LoRA does not know by heart: ``task_answers``, or as many as exist."""
    known = {value["prompt"] for _, value in read_json_lines(learned)}
    rng, texts_left = random.Random(f"{task}-{options.seed + 1}"), dict[str, None]()
    if options.task_texts is not None:
        texts = set(read_prompts(options.task_texts / f"{task}.jsonl")) - known
        people = [text for text in sorted(texts) if not tasks.repeats_typed_text(text)]
        rng.shuffle(people)
        texts_left.update(dict.fromkeys(people[: options.task_answers // 2]))
    for _ in range(10 * options.task_answers):
        if len(texts_left) == options.task_answers:
            break
        long = rng.random() < _LONGER
        content = mixture.longer(rng, task) if long else mixture.draw(rng, task).content
        if content not in known:
            texts_left[content] = None
    return list(texts_left)


def _settings(output: Path, options: MakingOptions, batch_size: int, **values: Any) -> Any:
    return TorchTrainSettings(
        output=output,
        model=demonstration.base_path(),
        time_limit=options.minutes,
        iters=options.iters,
        seed=options.seed,
        save_every=50,
        resume=(output / "checkpoint.pt").exists(),
        batch_size=options.batch_size or batch_size,
        max_seq_length=1024,
        **values,
    )


def lora_settings(task: str, options: MakingOptions) -> TorchTrainSettings:
    """The settings with which a task's LoRA is trained; its data is written if it is missing."""
    rng = random.Random(f"{task}-{options.seed}")
    return _settings(
        options.work / f"{task}-lora",
        options,
        16,
        data=_pairs(
            options.work / f"{task}.jsonl", (mixture.draw(rng, task) for _ in range(options.items))
        ),
        valid_data=_pairs(options.work / f"{task}-typed.jsonl", tasks.typed_dev(task, _TYPED)),
        prompt_template=tasks.prompt_template(task),
        lora_alone=True,
        lora_rank=_LORA_RANK,
    )


def stream_settings(
    part: str, options: MakingOptions, start: Path | None = None
) -> TorchTrainSettings:
    """The settings with which the base's streams, or a task's on its LoRA, are trained."""
    of_base = part == STREAMS
    answers = options.work / (OWN_ANSWERS if of_base else f"{part}-answers")
    if of_base and not answers.exists():
        answers = ANSWERS
    return _settings(
        options.work / part,
        options,
        8 if of_base else 16,
        data=answers / TRAIN,
        valid_data=answers / VALID,
        prompt_template=None if of_base else tasks.prompt_template(part),
        init_adapter=start,
        **({"embedding_learning_rate": _EMBEDDING_RATE} if of_base else _LEARNING_ON),
        **_STREAMS,
    )


def _tuned(task: str, options: MakingOptions) -> Path:
    """A task's trained LoRA with the base's streams, and the answers that they learn from."""
    streams, settings = options.work / STREAMS / "adapter", lora_settings(task, options)
    if not streams.exists():
        raise UserError(f"{task} before {STREAMS}, expected the base's streams first")
    lora = settings.output / "adapter"
    if not lora.exists():
        train(settings)
    writer, texts = AnswerWriter(settings.model, lora), unseen(task, options, settings.data)
    template = tasks.prompt_template(task)
    write_answers(writer, texts, options.work / f"{task}-answers", _TASK_ANSWER_TOKENS, template)
    start = options.work / f"{task}-start"
    if not start.exists():
        with staged_directory(start) as staged:
            for source in (lora, streams):
                shutil.copytree(source, staged, dirs_exist_ok=True)
    return start


def size_of(directory: Path) -> int:
    """The bytes of all files below ``directory``."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def bundle(work: Path, output: Path) -> None:
    """Write the finished parts in the form in which they are shipped: MLX format, in float16."""
    parts = {STREAMS: work / STREAMS} | {f"adapters/{n}": work / n for n in tasks.TASKS}
    finished = {part: s / "adapter" for part, s in parts.items() if (s / "adapter").exists()}
    if not finished:
        raise UserError(f"{work} has no <part>/adapter, expected at least one finished part")
    converted = work / "bundled"
    for part, source in finished.items():
        made = converted / part
        convert_adapter(source, demonstration.base_path(), made, dtype="float16", overwrite=True)
        config = read_json(made / ADAPTER_CONFIG)
        config[STREAM_KEY]["base_model"] = demonstration.REPOSITORY  # no directory of this machine
        (made / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        size, most = size_of(made), MOST_STREAM_BYTES if part == STREAMS else MOST_ADAPTER_BYTES
        if size > most:
            raise UserError(f"{part} has {size:,} bytes, expected at most {most:,}")
    for part in finished:
        with staged_directory(output / part) as staged:
            shutil.copytree(converted / part, staged, dirs_exist_ok=True)


def main(
    *,
    parts: list[str] = option(
        ...,
        TEXTS,
        "Parts to make: answers, streams, names of tasks, bundle.",
        metavar="PART",
        positional=True,
    ),
    options: MakingOptions,
) -> None:
    """Train streams and adapters for the demonstration model (resumable)."""
    console = Console(stderr=True)
    for part in parts:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}, expected {', '.join(PARTS)}")
        if part == BUNDLE:
            bundle(options.work, bundled.ROOT)
        elif part == OWN_ANSWERS:
            if not (options.work / part).exists():
                more = options.own_prompts, options.seed, options.prompts
                write_base_answers(
                    AnswerWriter(demonstration.base_path()), options.work / part, *more
                )
        elif not (options.work / part / "adapter").exists():
            start = None if part == STREAMS else _tuned(part, options)
            train(stream_settings(part, options, start))
        console.print(f"{part}: done")


if __name__ == "__main__":
    program(main)()
