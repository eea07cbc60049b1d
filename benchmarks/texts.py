"""The texts that benchmarks decode: their prompts, and how good an answer is.

Typed texts lie in ``typed``: ``dev`` and ``test`` hold the same kinds of texts, written by hand
without sight of the demonstration model's training text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import SpeculativeModel, UserError, bundled
from specstream_mlx.options import TEXT, choice, integer, option
from specstream_mlx.prompts import chat_prompt, check_prompt

BASE, ADAPTERS = WRITERS = "base", "adapters"
"""Who answers: the base, with its lossless streams, or the adapter of each task."""

TYPED = Path(__file__).parent / "typed"

INSTRUCTIONS: dict[str, str] = json.loads((TYPED / "instructions.json").read_text())
"""What the base is told to do, by task; an adapter knows its task."""

PROSE, PROSE_ADAPTER = "prose", "friendly"
"""Beginnings of prose, which belong to no task and have no right answer, and who goes on."""

TextSet = Literal["test", "dev"]

ORIGIN = option("test", choice(*get_args(TextSet)), "Which texts are decoded.", "--texts")
TASKS = option("", TEXT, "Comma-separated; default: all.", "--tasks")


def texts_a_task(default: int) -> Any:
    return option(default, integer(1), "Texts of a task at most.")


@dataclass(frozen=True)
class Text:
    prompt: list[int]  # token ids
    answers: tuple[str, ...]  # any of these is right; empty where none is known


@dataclass(frozen=True)
class Texts:
    origin: TextSet | str  # of the demonstration's tasks, or the name of a file of the user's
    count: int  # of a task
    given: tuple[str, ...] = ()  # the user's texts, which belong to no task

    def facts(self) -> dict[str, Any]:
        """Describe the texts for a report: what they are, and how many a task."""
        if self.given:
            count = min(self.count, len(self.given))
            return {"texts": f"prompts of {self.origin}", "items": count}
        return {"texts": f"typed texts ({self.origin})", "items": self.count}

    def of_task(
        self, model: SpeculativeModel, tokenizer: TokenizerWrapper, task: str
    ) -> list[Text]:
        """The texts of ``task``, or the user's own.

        An adapter's own instruction is put around them. Without one, adapters get the text alone,
        and the base the task's instruction, which the user's texts do without. Prose stands alone.
        """
        template = model.prompt_template
        items: Sequence[tuple[str, Sequence[str]]]
        if self.given:
            items = [(text, ()) for text in self.given[: self.count]]
        elif task == PROSE:
            items, template = [(line, ()) for line in prose(self.origin)[: self.count]], None
        else:
            items = task_items(self.origin, task, self.count)
            if template is None and writer_of(model) == BASE:
                template = INSTRUCTIONS[task] + "\n{text}"
        texts = [
            Text(chat_prompt(tokenizer, text, template), tuple(answers)) for text, answers in items
        ]
        for text in texts:
            check_prompt(text.prompt, model.config)
        return texts


def prose(origin: str) -> list[str]:
    """The beginnings of prose in a set of texts."""
    return (TYPED / origin / "prose.txt").read_text(encoding="utf-8").splitlines()


def task_items(origin: str, task: str, count: int) -> list[tuple[str, Sequence[str]]]:
    """The first inputs of a task in a set of texts, each with its right answers."""
    lines = (TYPED / origin / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [(values["input"], values["accepted"]) for values in map(json.loads, lines)]


def names_in(text: str, known: Sequence[str], kind: str) -> list[str]:
    """The names in an option, all known ones where it is empty."""
    names = [name.strip() for name in text.split(",")] if text else list(known)
    for name in names:
        if name not in known:
            raise UserError(f"unknown {kind} {name!r}, expected one of {', '.join(known)}")
    return names


def chosen_tasks(names: str) -> list[str]:
    """The comma-separated tasks of ``--tasks``, or all."""
    return names_in(names, list(INSTRUCTIONS), "task")


def writer_of(model: SpeculativeModel) -> str:
    """Who answers with what is mounted: streams alone leave the base as it is."""
    is_adapted = model.adapter is not None and (model.adapter.lora or model.mode == "shared")
    return ADAPTERS if is_adapted else BASE


def adapter_of(task: str, writer: str) -> Path:
    """What is bundled for a writer: the base's lossless streams, or the adapter of a task."""
    if writer == BASE:
        return bundled.streams_path()
    return bundled.adapter_path(PROSE_ADAPTER if task == PROSE else task)


Answers = Sequence[str]  # that are right for one text


def score(task: str, outputs: Sequence[str], answers: Sequence[Answers]) -> tuple[str, float]:
    """Name and value of a task's metric: exact match where one answer is right, else ROUGE-L."""
    if task in ("proofread", "sql"):
        return "exact match", exact_match(outputs, answers)
    return "ROUGE-L", rouge_l(outputs, answers)


def exact_match(outputs: Sequence[str], answers: Sequence[Answers]) -> float:
    """Share of outputs equal to one of their answers, white space and kinds of quotes apart."""
    pairs = zip(outputs, answers, strict=True)
    right = sum(_evened(output) in map(_evened, accepted) for output, accepted in pairs)
    return right / len(outputs)


_QUOTES = str.maketrans(dict.fromkeys('"\u2018\u2019\u201c\u201d', "'"))


def _evened(text: str) -> str:
    return " ".join(text.translate(_QUOTES).split())


def rouge_l(outputs: Sequence[str], answers: Sequence[Answers]) -> float:
    """Mean ROUGE-L F1 of words (Lin 2004); of several answers the closest one counts."""
    pairs = zip(outputs, answers, strict=True)
    total = sum(max(_rouge_l(o, answer) for answer in accepted) for o, accepted in pairs)
    return total / len(outputs)


def _rouge_l(output: str, answer: str) -> float:
    words, wanted = (_evened(text).lower().split() for text in (output, answer))
    row = [0] * (len(wanted) + 1)  # lengths of the longest common subsequences
    for word in words:
        diagonal = 0
        for column, other in enumerate(wanted, start=1):
            above = row[column]
            row[column] = diagonal + 1 if word == other else max(above, row[column - 1])
            diagonal = above
    return 2 * row[-1] / (len(words) + len(wanted)) if row[-1] else 0.0
