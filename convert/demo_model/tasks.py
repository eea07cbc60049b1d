"""The writing tasks that adapters of the demonstration model are made for."""

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

TYPED = Path(__file__).parents[2] / "benchmarks" / "typed"
"""Texts that people typed, for development and for tests; nothing is trained on them."""

TASKS: dict[str, str] = json.loads((TYPED / "instructions.json").read_text(encoding="utf-8"))
"""The instruction of each task; a task's name is also its adapter's."""

_IN_A_ROW = 8
"""Words in a row that an item may not have in common with a typed text."""


class TaskItem(NamedTuple):
    """What a user types, raw and without an instruction, and the text that the model is to write.

    It is a message, ``A: .. B: ..``, ``table t(a, b): question`` or ``name[..], food[..]``.
    """

    content: str
    target: str


def prompt_template(task: str) -> str:
    """Template around the user's raw text: the instruction, then ``{text}``."""
    return TASKS[task] + "\n{text}"


def typed_dev(task: str, count: int) -> list[TaskItem]:
    """The first typed texts of a task, to follow a training by and never to train on."""
    lines = (TYPED / "dev" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [TaskItem(v["input"], v["accepted"][0]) for v in map(json.loads, lines)]


def word_runs(text: str) -> set[tuple[str, ...]]:
    """The runs of eight words of a text, lower-cased and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + _IN_A_ROW]) for i in range(len(words) - _IN_A_ROW + 1)}


@cache
def _typed_runs() -> frozenset[tuple[str, ...]]:
    texts: list[str] = []
    for path in sorted(TYPED.glob("*/*.jsonl")):
        for values in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            texts += [values["input"], *values["accepted"]]
    for path in sorted(TYPED.glob("*/prose.txt")):
        texts += path.read_text(encoding="utf-8").splitlines()
    if not texts:
        raise FileNotFoundError(f"{TYPED}: expected the typed test texts")
    return frozenset[tuple[str, ...]]().union(*map(word_runs, texts))


def repeats_typed_text(text: str) -> bool:
    """Tell whether ``text`` has eight words in a row of a typed text."""
    return not _typed_runs().isdisjoint(word_runs(text))
