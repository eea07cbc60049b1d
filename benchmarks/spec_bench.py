"""Spec-Bench's questions: ``specstream-mlx benchmark spec-bench --questions FILE``.

The file is Spec-Bench's own ``question.jsonl``, which is not part of this project. The base answers
greedily through its chat template, batch 1; the second turn of a conversation follows mlx_lm's
answer to the first, the same for every method. Methods take turns on every text, see ``runner``:
mlx_lm, and what ``generate`` does with streams alone, with lookup alone and with both. Then a chain
and a tree of fixed shape show how often streams are right; ``--acceptance`` measures that alone,
times nothing, and so may run on a busy machine.

``tokens a call`` is all tokens over all calls of the target, the call that writes an answer's first
token included. ``speed`` is the median over texts of (tokens/s after the first token) / (mlx_lm's
on the same text). Spec-Bench has another convention, shown too: of each question all new
tokens over all wall time, reading the prompts included, and of these the mean over questions, over
mlx_lm's mean. (Its ``speed.py`` reads the answers that ``--answers`` keeps, and counts the
baseline's tokens by encoding the text again, less one; here both sides have those that were
written.) Its answers have up to 1,024 tokens; the default here is
256.
"""

import json
import statistics
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specstream_mlx import DraftSettings, UserError
from specstream_mlx.errors import is_integer, shown
from specstream_mlx.files import read_json_lines
from specstream_mlx.prompts import check_prompt, encode_prompt

from .report import ResultStore, machine_suffix, measured_on, table, write_report, write_text
from .runner import (
    ALONE,
    CHAIN,
    LOOKUP_ALONE,
    MLX_LM,
    TREE,
    Base,
    ByWorth,
    Compared,
    Drafts,
    Mounted,
    TimedRun,
    Way,
    in_turn,
    measure_costs,
)
from .speedup import Subject
from .texts import BASE, writer_of

MT_BENCH = "mt_bench"
TASKS = (MT_BENCH, "translation", "summarization", "qa", "math_reasoning", "rag")
"""As Spec-Bench counts them; the categories of MT-Bench are one."""

ALL, MEAN = "all", "geometric mean"

BOTH = "both"
BY_WORTH: dict[str, Drafts] = {**ALONE, BOTH: ByWorth()}  # what is timed
STREAM_SHAPES: dict[str, Drafts] = {"chain": CHAIN, "tree of 8": TREE}
LOOKUP_SHAPES: dict[str, Drafts] = {
    "lookup, 8 nodes": DraftSettings(lookup=True, num_streams=0),
    "both, 8 nodes": DraftSettings(lookup=True),
}
"""Fixed shapes, whose acceptance does not depend on the machine."""

WITHOUT_STREAMS = (LOOKUP_ALONE, "lookup, 8 nodes")


# Questions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    number: int  # ``question_id``
    category: str  # as the file has it
    turns: tuple[str, ...]  # what the user says, turn by turn

    @property
    def task(self) -> str:
        return self.category if self.category in TASKS else MT_BENCH


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in Spec-Bench's format."""
    questions: dict[int, Question] = {}
    for line, values in read_json_lines(path):
        known: Any = values if isinstance(values, dict) else {}
        number, category, turns = (known.get(name) for name in ("question_id", "category", "turns"))
        fits = (
            is_integer(number) and isinstance(category, str) and isinstance(turns, list) and turns
        )
        if not fits or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise UserError(
                f"{path}, line {line} is {shown(values)}, expected a question_id (an integer), a "
                "category and turns (a list of texts)"
            )
        if number in questions:
            raise UserError(f"{path}, line {line}: question_id {number} is there twice")
        questions[number] = Question(number, category, tuple(turns))
    if not questions:
        raise UserError(f"{path} is empty, expected a question on each line")
    return list(questions.values())


def spread(questions: Sequence[Question], per_task: int | None) -> list[Question]:
    """So many questions of each task, evenly spread over it and over MT-Bench's categories."""
    chosen: list[Question] = []
    for task in TASKS:
        of_task = sorted((q for q in questions if q.task == task), key=lambda q: q.category)
        count = len(of_task) if per_task is None else min(per_task, len(of_task))
        chosen += [of_task[(2 * i + 1) * len(of_task) // (2 * count)] for i in range(count)]
    return chosen


# Answers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    questions: Sequence[Question]  # that were answered
    of: Sequence[int]  # of each text, which question it answers, by its place in ``questions``
    compared: Compared[str]  # the texts' runs; those of fixed shapes have no rates
    left_out: int  # turns whose prompt is longer than the model's context

    def of_task(self, task: str) -> "Answered":
        """The answers to the questions of a task, or of ``ALL``."""
        places = [i for i, q in enumerate(self.of) if task in (ALL, self.questions[q].task)]
        runs = {name: [some[i] for i in places] for name, some in self.compared.runs.items()}
        rates = {
            (name, places.index(i)): rate
            for (name, i), rate in self.compared.rates.items()
            if i in places
        }
        of = [self.of[i] for i in places]
        return Answered(self.questions, of, Compared(runs, rates), self.left_out)

    def by_question(self, name: str) -> dict[int, list[TimedRun]]:
        """The runs of a method, turn by turn, for the place of each question that has any."""
        by_question: dict[int, list[TimedRun]] = {}
        for question, run in zip(self.of, self.compared.first_runs(name), strict=True):
            by_question.setdefault(question, []).append(run)
        return by_question


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def prompt_of(mounted: Mounted, chat: Sequence[Mapping[str, str]]) -> list[int] | None:
    """Token ids of a chat up to where the answer begins; ``None``: longer than the context."""
    prompt = encode_prompt(mounted.tokenizer, chat)
    with suppress(UserError):
        check_prompt(prompt, mounted.model.config)
        return prompt
    return None


def answer(
    mounted: Mounted, questions: Sequence[Question], ways: Mapping[str, Way], timed: Collection[str]
) -> Answered:
    """Answer every turn by every way; a later turn follows mlx_lm's answers."""
    of: list[int] = []
    runs: dict[str, list[list[TimedRun]]] = {name: [] for name in ways}
    rates: dict[tuple[str, int], float] = {}
    left_out = 0
    chats: dict[int, list[dict[str, str]]] = {i: [] for i in range(len(questions))}
    for turn in range(max(len(question.turns) for question in questions)):
        prompts: dict[int, list[int]] = {}
        for i in [i for i in chats if turn < len(questions[i].turns)]:
            chats[i].append(said("user", questions[i].turns[turn]))
            prompt = prompt_of(mounted, chats[i])
            if prompt is not None:
                prompts[i] = prompt
            else:  # nor do the turns after it fit
                left_out += len(questions[i].turns) - turn
                del chats[i]
        if not prompts:
            break
        compared = in_turn(list(prompts.values()), ways, timed)
        rates |= {(name, len(of) + i): rate for (name, i), rate in compared.rates.items()}
        for name, some in compared.runs.items():
            runs[name] += some
        for i, (run,) in zip(prompts, runs[MLX_LM][len(of) :], strict=True):
            chats[i].append(said("assistant", run.text))
        of += prompts
    return Answered(questions, of, Compared(runs, rates), left_out)


def stored_way(store: ResultStore, name: str | Sequence[Any], way: Way) -> Way:
    """A way that makes only runs that are not stored yet."""
    names = [field.name for field in fields(TimedRun)]

    def run(prompt: Sequence[int]) -> TimedRun:
        return TimedRun(**store.get((name, list(prompt), names), lambda: asdict(way(prompt))))

    return run


def answer_lines(answered: Answered, method: str, model_name: str) -> list[dict[str, Any]]:
    """A method's answers in Spec-Bench's format, one a question.

    There, what ends the prompt is no call of its own for Medusa, Hydra, EAGLE and REST; so it is
    none of the ``accept_lengths``, but one of the ``decoding_steps``, which nothing reads.
    """
    return [
        {
            "question_id": answered.questions[i].number,
            "category": answered.questions[i].category,
            "answer_id": uuid.uuid4().hex,
            "model_id": f"{model_name}, {method}",
            "choices": [
                {
                    "index": 0,
                    "turns": [run.text for run in runs],
                    "decoding_steps": [run.target_calls for run in runs],
                    "new_tokens": [len(run.tokens) for run in runs],
                    "wall_time": [run.seconds for run in runs],
                    "accept_lengths": [n for run in runs for n in run.lengths[1:]],
                }
            ],
            "tstamp": time.time(),
        }
        for i, runs in answered.by_question(method).items()
    ]


# Figures ------------------------------------------------------------------------------------


def overall_rate(answered: Answered, method: str) -> float:
    """The mean over questions of new tokens per second of wall time, as Spec-Bench has it."""
    return statistics.mean(
        sum(len(run.tokens) for run in runs) / sum(run.seconds for run in runs)
        for runs in answered.by_question(method).values()
    )


def rows_of(answered: Answered, timed: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each task and method, then for all questions, and for the mean over tasks."""
    rows: list[dict[str, Any]] = []
    for task in (*TASKS, ALL):
        part = answered.of_task(task)
        plain = part.compared.first_runs(MLX_LM)
        for name in part.compared.runs if part.of else ():
            counts: dict[str, Any] = part.compared.counts(name, plain)
            row = {"task": task, "method": name, "questions": len(set(part.of)), **counts}
            row["call_reduction"] = row["tokens"] / row["calls"]
            if name in timed:
                row["speedup"] = part.compared.speedup(name, MLX_LM)
                row["spec_bench_speedup"] = overall_rate(part, name) / overall_rate(part, MLX_LM)
            rows.append(row)
    return rows


def means_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The geometric means over tasks, one row a method."""
    means = []
    for name in dict.fromkeys(row["method"] for row in rows):
        of_method = [row for row in rows if row["method"] == name and row["task"] != ALL]
        figures = ("call_reduction", "speedup", "spec_bench_speedup")
        means.append(
            {"task": MEAN, "method": name}
            | {
                key: statistics.geometric_mean([row[key] for row in of_method])
                for key in figures
                if key in of_method[0]
            }
        )
    return means


def markdown(
    rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[str]:
    """The lines of the report: tokens a call of every method, and speed where it was timed."""
    drafted = [row for row in rows if row["method"] != MLX_LM]
    right = sum(row["same_output_as_plain"] for row in drafted if row["task"] == ALL)
    texts = sum(row["items"] for row in drafted if row["task"] == ALL)
    tasks: dict[str, dict[str, Any]] = {}
    for row in (*rows, *means):
        counts = {key: row.get(key, "") for key in ("task", "questions", "items", "tokens")}
        tasks.setdefault(row["task"], counts)[row["method"]] = row
    names = list(dict.fromkeys(row["method"] for row in drafted))
    columns = {"task": "{task}", "questions": "{questions}", "texts": "{items}"}
    calls = {"tokens": "{tokens}"} | {name: f"{{{name}[call_reduction]:.2f}}" for name in names}
    lines = [
        f"{measured_on(facts)}; model {facts['model']}; weights {facts['weights']}; mlx_lm on "
        f"{facts['plain_weights']} weights; Spec-Bench's questions, greedy, at most "
        f"{facts['max_tokens']} tokens a turn (Spec-Bench: 1024).",
        f"{right} of {texts} answers are those of mlx_lm.",
    ]
    if facts["left_out"]:
        lines.append(f"{facts['left_out']} turns are left out, longer than the model's context.")
    lines += ["", "Tokens a call:", "", *table(columns | calls, tasks.values())]
    timed = [row["method"] for row in means if "speedup" in row and row["method"] != MLX_LM]
    if timed:
        speeds = {
            name: f"{{{name}[speedup]:.2f}}x ({{{name}[spec_bench_speedup]:.2f}}x)"
            for name in timed
        }
        lines += ["", "Speed over mlx_lm after the first token, and in brackets with the prompt, "]
        lines[-1] += "in Spec-Bench's convention:"
        lines += ["", *table(columns | speeds, tasks.values())]
    return lines


def compare(
    questions: Sequence[Question],
    subject: Subject,
    output: Path,
    *,
    max_tokens: int,
    acceptance: bool = False,
    answers: Path | None = None,
    runs_file: Path | None = None,
) -> tuple[str, list[dict[str, Any]]]:
    """Answer questions; writes ``spec-bench-MACHINE``, or ``spec-bench-acceptance-MACHINE``."""
    as_fastest = subject.weights == "auto" and not acceptance
    base = Base(subject.directory, max_tokens, subject.weights, fastest_baseline=as_fastest)
    mounted = mount_lossless(base, subject)
    prompts = first_prompts(mounted, questions)
    model = mounted.model
    facts = base.facts() | {"model": subject.name, "max_tokens": max_tokens}
    runs = ResultStore(runs_file, depends_on(facts, subject))
    ours = STREAM_SHAPES | LOOKUP_SHAPES if acceptance else BY_WORTH | STREAM_SHAPES
    if model.streams is None:
        ours = {name: how for name, how in ours.items() if name in WITHOUT_STREAMS}
    if not acceptance:
        measure_costs(mounted, prompts)
    ways = {MLX_LM: mounted.mlx_lm()} | {name: mounted.ours(how) for name, how in ours.items()}
    timed = [] if acceptance else [name for name in ways if name == MLX_LM or name in BY_WORTH]
    for name in timed:
        ways[name](prompts[0])  # warms up
    ways = {name: stored_way(runs, name, way) for name, way in ways.items()}
    answered = answer(mounted, questions, ways, timed)
    rows = rows_of(answered, timed)
    means, facts = means_of(rows), facts | {"left_out": answered.left_out}
    name = "spec-bench-acceptance" if acceptance else "spec-bench"
    text = write_report(
        output,
        f"{name}-{machine_suffix(facts)}",
        {"facts": facts, "rows": rows, "means": means},
        markdown(rows, means, facts),
    )
    if answers is not None:
        write_answers(answers, answered, ways, subject.name)
    return text, rows


def mount_lossless(base: Base, subject: Subject) -> Mounted:
    """Mount a base's lossless streams."""
    mounted = base.mount(subject.adapter)
    if mounted.model.mode != "lossless":
        raise UserError(
            f"{subject.adapter} is {mounted.model.mode}, expected streams in lossless mode"
        )
    if writer_of(mounted.model) != BASE:
        raise UserError(f"{subject.adapter} has LoRA, expected streams alone: the base answers")
    return mounted


def first_prompts(mounted: Mounted, questions: Sequence[Question]) -> list[list[int]]:
    """Read the first turns of questions, of those that are not longer than the model's context."""
    first = (prompt_of(mounted, [said("user", q.turns[0])]) for q in questions)
    prompts = [prompt for prompt in first if prompt is not None]
    if not prompts:
        raise UserError("every question is longer than the model's context, expected shorter ones")
    return prompts


def write_answers(directory: Path, answered: Answered, methods: Iterable[str], model: str) -> None:
    """Write the answers in Spec-Bench's format, a file for each method."""
    directory.mkdir(parents=True, exist_ok=True)
    for method in methods:
        lines = map(json.dumps, answer_lines(answered, method, model))
        file = method.replace("+", "and").replace(",", "").replace(" ", "-") + ".jsonl"
        write_text(directory / file, "\n".join(lines) + "\n")


def depends_on(facts: Mapping[str, Any], subject: Subject) -> list[Any]:
    """List the facts that a run depends on besides way and prompt."""
    names = ("machine", "cpu", "mlx", "backend", "blas", "weights", "plain_weights", "max_tokens")
    return [*(facts[name] for name in names), stamps(subject.directory, subject.adapter)]


def stamps(*paths: Path | None) -> list[tuple[str, float]]:
    """List files, and the weights and settings in directories, with the times of their change."""
    files: list[Path] = []
    for path in filter(None, paths):
        files_of = [path]
        if path.is_dir():
            files_of = [file for kind in ("safetensors", "json") for file in path.glob(f"*.{kind}")]
        files += sorted(files_of)
    return [(str(file), file.stat().st_mtime) for file in files]
