"""``specstream-mlx benchmark``: the gain of drafts."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..errors import UserError
from ..files import prompt_lines
from ..options import (
    DIRECTORY,
    FILE,
    FLAG,
    NAME,
    PART_OF_NAME,
    TEXT,
    choice,
    integer,
    most_tokens,
    option,
)
from .options import ModelOptions

if TYPE_CHECKING:
    from specstream_mlx.benchmarks.speedup import Subject


@dataclass(frozen=True)
class TextOptions:
    """The texts that are decoded."""

    PANEL: ClassVar[str] = "Texts"

    prompts: Path | None = option(
        None, FILE, "Texts of yours: one prompt a line, as raw text.", without=("texts", "tasks")
    )
    texts: str | None = option(
        None,
        choice("test", "dev"),
        "Texts of the eight tasks of the demonstration model, typed by people. Default: test.",
    )
    tasks: str = option("", TEXT, "Only these tasks: proofread, sql, ..", metavar="NAME,NAME")
    items: int | None = option(None, integer(1), "Texts of each task, or of FILE.")


def _output(flag: str, path: Path) -> Path:
    """Return the directory of an option, which may be new."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UserError(f"{flag} {path} is no directory, expected one or a new name")
    return path


_OUTPUT = option(Path(), DIRECTORY, "Directory of the result files.", "--output", panel="Results")


@dataclass(frozen=True)
class SpeedupOptions:
    """The ways that are compared, and how often."""

    PANEL: ClassVar[str] = "Options"

    suite: str = option(
        "rule",
        choice("rule", "speedup"),
        "What is compared with mlx_lm. rule: what generate does, and fixed trees; speedup: the "
        "paper's trees.",
    )
    writers: str = option(
        "",
        NAME,
        "Who of the demonstration model answers: base, with its lossless streams, or adapters. "
        "Default: both.",
    )
    rounds: int | None = option(None, integer(1), "Runs of each text.")
    max_tokens: int | None = most_tokens(None, least=2)
    name: str = option("", PART_OF_NAME, "Of the result files: SUITE-NAME-MACHINE.", metavar="NAME")


def speedup(
    *, model: ModelOptions, texts: TextOptions, asked: SpeedupOptions, output: Path = _OUTPUT
) -> None:
    r"""Measure how much faster drafting is than plain mlx_lm, on the same weights and texts.

    Batch 1, greedy, decoding alone; all ways take turns on every text, and every text is checked.
    Without options: every bundled adapter on texts of its task, and smollm2 with its lossless
    streams. How many texts, rounds and tokens depends on the suite. The table is printed, and kept
    in a Markdown file and a JSON file.

    Examples:

    One bundled adapter, on a text of its task:

        specstream-mlx benchmark speedup --adapter sql --items 1 --rounds 1

    A model and prompts of yours:

        specstream-mlx benchmark speedup --model my-model --adapter-path streams \
            --prompts prompts.txt --max-tokens 64
    """
    output = _output("--output", output)
    from specstream_mlx.benchmarks import speedup as benchmark
    from specstream_mlx.benchmarks.texts import WRITERS, Texts, chosen_tasks, names_in

    if texts.prompts is not None:
        own = tuple(prompt_lines(texts.prompts))
        chosen = Texts(texts.prompts.name, texts.items or len(own), own)
        tasks = [texts.prompts.stem]
    else:
        usual = benchmark.SUITES[asked.suite].items
        chosen = Texts(texts.texts or "test", texts.items or usual)
        tasks = chosen_tasks(texts.tasks or model.adapter or "")
    writers = names_in(asked.writers, WRITERS, "writer") if asked.writers else ()
    text, rows = benchmark.compare(
        asked.suite,
        chosen,
        tasks,
        _subject(model, texts.prompts),
        output,
        writers=writers,
        rounds=asked.rounds,
        max_tokens=asked.max_tokens,
        label=asked.name,
    )
    print(text)
    benchmark.check_texts(rows)


@dataclass(frozen=True)
class SpecBenchOptions:
    """Spec-Bench's questions, what is measured, and what is kept of the answers."""

    PANEL: ClassVar[str] = "Options"

    questions: Path = option(..., FILE, "Spec-Bench's question.jsonl.")
    per_category: int | None = option(
        None, integer(1), "Questions of each of the six tasks. Default: all."
    )
    max_tokens: int = most_tokens(
        256, "Tokens of an answer at most; Spec-Bench itself has 1024.", least=2
    )
    acceptance: bool = option(
        False, FLAG, "Time nothing: tokens a call of fixed shapes alone, also on a busy machine."
    )
    answers: Path | None = option(
        None, DIRECTORY, "Keep the answers here in Spec-Bench's format, by method."
    )
    runs: Path | None = option(
        None,
        FILE,
        "Keep every answer in this file as it comes; those that are there, from a run that was "
        "broken off, are not made again.",
    )


def spec_bench(*, model: ModelOptions, bench: SpecBenchOptions, output: Path = _OUTPUT) -> None:
    r"""Answer Spec-Bench's questions by mlx_lm and by drafts of streams, of lookup and of both.

    Batch 1, greedy, through the chat template; all ways take turns on every text, and every text is
    checked. The tables, by task, are printed and kept in a Markdown file and a JSON file.

    Examples:

        specstream-mlx benchmark spec-bench --questions question.jsonl --per-category 2

        specstream-mlx benchmark spec-bench --questions question.jsonl --model my-model \
            --adapter-path streams --answers answers
    """
    output = _output("--output", output)
    answers = None if bench.answers is None else _output("--answers", bench.answers)
    from specstream_mlx.benchmarks import spec_bench as benchmark
    from specstream_mlx.benchmarks.speedup import check_texts

    questions = benchmark.spread(benchmark.read_questions(bench.questions), bench.per_category)
    text, rows = benchmark.compare(
        questions,
        _subject(model),
        output,
        max_tokens=bench.max_tokens,
        acceptance=bench.acceptance,
        answers=answers,
        runs_file=bench.runs,
    )
    print(text)
    check_texts(rows)


def _subject(model: ModelOptions, prompts: Path | None = None) -> "Subject":
    """The model to measure; the bundled adapters of all tasks where nothing else was named."""
    if model.draft_head is not None:
        raise UserError("--draft-head was given, which benchmarks do not measure, expected streams")

    from specstream_mlx.benchmarks.speedup import Subject

    from ..loading import model_directory

    source = model.source()
    named = (model.model, model.adapter, model.adapter_path, prompts)
    return Subject(
        model_directory(source.model),
        source.model_name,
        source.adapter,
        each_bundled=all(value is None for value in named),
        weights=model.weights,
    )
