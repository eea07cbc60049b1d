"""``specstream-mlx benchmark``: the gain of drafts, and the cost of fewer bits."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import prompt_lines
from ..options import DIRECTORY, FILE, FLAG, TEXT, choice, integer, most_tokens, option
from .options import AS_STORED, JSON, ModelOptions

if TYPE_CHECKING:
    from specstream_mlx.benchmarks.speedup import Subject

_MOST_OWN = 8  # texts of the user's file, with --suite quick
_PROMPTS = option(
    None,
    FILE,
    "Texts of yours: one prompt a line, as raw text. Default: those of the eight tasks of the "
    "demonstration model, typed by people.",
    "--prompts",
    without=("tasks",),
)
_TASKS = option("", TEXT, "Only these tasks: proofread, sql, ..", "--tasks", metavar="NAME,NAME")
_OUTPUT = option(Path(), DIRECTORY, "Directory of the result files. Default: this one.", "--output")


def speedup(
    *,
    model: ModelOptions,
    prompts: Path | None = _PROMPTS,
    tasks: str = _TASKS,
    items: int | None = option(None, integer(1), "Texts of each task, or of FILE."),
    suite: str = option(
        "quick",
        choice("quick", "rule", "speedup"),
        "What is compared with mlx_lm. quick: what generate does, in a minute; rule: the same on "
        "more texts, and fixed trees; speedup: the paper's trees.",
    ),
    rounds: int | None = option(None, integer(1), "Runs of each text."),
    max_tokens: int | None = most_tokens(None, least=2),
    as_stored: bool = AS_STORED,
    output: Path = _OUTPUT,
) -> None:
    r"""Measure how much faster drafting is than plain mlx_lm, on the same weights and texts.

    Batch 1, greedy, only decoding is timed; all methods take turns on every text, and every text is
    checked. Without options it takes a minute, with a text of each bundled adapter's task, and says
    in words how much faster it is here. Texts, rounds and tokens depend on the suite. The table is
    printed and written to SUITE-MACHINE.md and SUITE-MACHINE.json in --output.

    Examples:

    One bundled adapter, on a text of its task:

        specstream-mlx benchmark speedup --adapter sql

    Every adapter, and smollm2 with its lossless streams, which takes hours:

        specstream-mlx benchmark speedup --suite rule

    A model and prompts of yours:

        specstream-mlx benchmark speedup --model my-model --adapter-path streams \
            --prompts prompts.txt --max-tokens 64
    """
    model.check()
    _check_directory("--output", output)
    texts_given = () if prompts is None else tuple(prompt_lines(prompts))
    from specstream_mlx.benchmarks import speedup as benchmark
    from specstream_mlx.benchmarks.texts import Texts, chosen_tasks

    if prompts is not None:
        most = _MOST_OWN if suite == "quick" else len(texts_given)
        count = items or min(most, len(texts_given))
        texts, names = Texts(prompts.name, count, texts_given), [prompts.stem]
    else:
        texts = Texts("test", items or benchmark.SUITES[suite].items)
        names = chosen_tasks(tasks or model.adapter or "")
    subject = _subject(model, prompts)
    limits: dict[str, Any] = {"rounds": rounds, "max_tokens": max_tokens, "as_stored": as_stored}
    text, rows = benchmark.compare(suite, texts, names, subject, output, **limits)
    print(text)
    benchmark.check_texts(rows)


def quantization(
    *,
    model: ModelOptions,
    bits: str = option(
        "8,4,mixed_4_6,mixed_3_4",
        TEXT,
        "To what the model is quantized: 8, 4, or recipes of convert's --quant-predicate.",
        metavar="NAME,NAME",
    ),
    prompts: Path | None = _PROMPTS,
    tasks: str = _TASKS,
    items: int | None = option(
        None, integer(1), f"Texts of each task, or of FILE. Default: {_MOST_OWN} in all."
    ),
    rounds: int = option(1, integer(1), "Runs of each timed text."),
    max_tokens: int = most_tokens(64, least=2),
    as_json: bool = JSON,
    output: Path | None = option(
        None,
        DIRECTORY,
        "Also write quantization-MACHINE.md and .json to this directory. Default: no files.",
    ),
) -> None:
    r"""Measure what fewer bits cost a model, and what drafts bring there.

    The model as it comes is compared with itself at fewer bits, which are made in memory: no model
    is written. Bytes, perplexity (of your texts, or of prose), how many tokens stay the same,
    accepted lengths, and tokens a second, plain and with drafts, in turn; every text is checked.
    The answer comes in words, then in a table.

    Examples:

    The demonstration model, which comes in 4 bits, at 8, on one task:

        specstream-mlx benchmark quantization --bits 8 --tasks sql --items 2

    A model and prompts of yours:

        specstream-mlx benchmark quantization --model my-model \
            --adapter-path streams --prompts prompts.txt --max-tokens 32
    """
    model.check()
    _check_directory("--output", output)
    given = () if prompts is None else tuple(prompt_lines(prompts))
    from specstream_mlx.benchmarks import quantization as benchmark
    from specstream_mlx.benchmarks.speedup import check_texts
    from specstream_mlx.benchmarks.texts import Texts, chosen_tasks

    chosen = benchmark.chosen_bits(bits)
    names = [prompts.stem] if prompts else chosen_tasks(tasks or model.adapter or "")
    count = items or max(1, _MOST_OWN // len(names))
    texts = Texts(prompts.name if prompts else "test", count, given)
    material = benchmark.Material(texts, names, rounds, max_tokens)
    text, values = benchmark.compare(_subject(model, prompts), material, chosen, output)
    print(json.dumps(values, indent=2) if as_json else text)
    for row in values["rows"]:
        check_texts(row["ways"])


def spec_bench(
    *,
    model: ModelOptions,
    questions: Path = option(..., FILE, "Spec-Bench's question.jsonl."),
    per_category: int | None = option(
        None, integer(1), "Questions of each of the six tasks. Default: all."
    ),
    max_tokens: int = most_tokens(
        256, "Tokens of an answer at most; Spec-Bench itself has 1024.", least=2
    ),
    acceptance: bool = option(
        False,
        FLAG,
        "Only count tokens per call, of fixed shapes; the machine may be busy.",
    ),
    answers: Path | None = option(
        None, DIRECTORY, "Keep the answers here in Spec-Bench's format, by method."
    ),
    runs: Path | None = option(
        None,
        FILE,
        "Keep every answer in this file as it comes; those that are there, from a run that was "
        "broken off, are not made again.",
    ),
    output: Path = _OUTPUT,
) -> None:
    r"""Answer Spec-Bench's questions by mlx_lm and by drafts of streams, of lookup and of both.

    Batch 1, greedy, with the chat template; all methods take turns on every text, and every text is
    checked. The tables, by task, are printed and written to a Markdown file and a JSON file.

    Examples:

        specstream-mlx benchmark spec-bench --questions question.jsonl --per-category 2

        specstream-mlx benchmark spec-bench --questions question.jsonl --model my-model \
            --adapter-path streams --answers answers
    """
    model.check()
    _check_directory("--output", output)
    _check_directory("--answers", answers)
    if not questions.exists():
        raise UserError(f"{questions} is missing")
    from specstream_mlx.benchmarks import spec_bench as benchmark
    from specstream_mlx.benchmarks.speedup import check_texts

    text, rows = benchmark.compare(
        benchmark.spread(benchmark.read_questions(questions), per_category),
        _subject(model),
        output,
        max_tokens=max_tokens,
        acceptance=acceptance,
        answers=answers,
        runs_file=runs,
    )
    print(text)
    check_texts(rows)


def _check_directory(flag: str, path: Path | None) -> None:
    if path is not None and os.path.lexists(path) and not os.path.isdir(path):
        raise UserError(f"{flag} {path} is no directory, expected one or a new name")


def _subject(model: ModelOptions, prompts: Path | None = None) -> "Subject":
    """The model to measure; by default the bundled adapters of all tasks."""
    if model.draft_head is not None:
        raise UserError("--draft-head was given, which benchmarks do not measure, expected streams")

    from specstream_mlx.benchmarks.speedup import Subject

    from ..loading.model_paths import model_directory

    source = model.source()
    named = (model.model, model.adapter, model.adapter_path, prompts)
    return Subject(
        model_directory(source.model),
        source.model_name,
        source.adapter,
        each_bundled=all(value is None for value in named),
        weights=model.weights,
    )
