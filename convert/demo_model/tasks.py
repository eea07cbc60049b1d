"""The writing tasks that adapters of the demonstration model are made for."""

import json
from dataclasses import dataclass

from .typed_texts import TYPED

TASKS: dict[str, str] = json.loads((TYPED / "instructions.json").read_text(encoding="utf-8"))
"""What the base is told to do, by task; a task's name is also its adapter's."""


@dataclass(frozen=True)
class Item:
    """One pair of input and answer.

    Attributes:
        task: its name.
        content: what a user types, raw: a message, ``A: .. B: ..``, ``table t(a, b): question`` or
            ``name[..], food[..]``. No instruction.
        target: the text that the model is to write.
        source: where the pair comes from, as ``tables/farm``.
    """

    task: str
    content: str
    target: str
    source: str


def prompt_template(task: str) -> str:
    """Template around the user's raw text: the instruction, then ``{text}``."""
    return TASKS[task] + "\n{text}"


def typed_dev(task: str, count: int) -> list[list[Item]]:
    """The first ``count`` typed texts of a task, to watch a training on and never to train on.

    Returns:
        For each text an item with every accepted answer.
    """
    lines = (TYPED / "dev" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [
        [Item(task, values["input"], answer, f"typed/{task}") for answer in values["accepted"]]
        for values in map(json.loads, lines)
    ]
