"""The demonstration model's tasks and the text that trains and tests it.

The text comes from this generator alone. ``generator_hash`` identifies it: result tables carry
the hash, so that figures of different generators are never compared.
"""

import hashlib
import random
from pathlib import Path

from . import concise, describe, friendly, key_points, professional, proofread, sql, summarize
from .item import Item, Split

_MODULES = (proofread, friendly, professional, concise, summarize, key_points, sql, describe)

TASKS = {module.NAME: module for module in _MODULES}
"""Task modules by name; see ``item`` for what each offers."""

_WEIGHTS = {
    "proofread": 4,
    "sql": 4,
    "summarize": 4,
    "describe": 4,
    "friendly": 2,
    "professional": 2,
    "concise": 2,
    "key_points": 2,
}


def sample(rng: random.Random, split: Split, task: str | None = None) -> Item:
    """One item of ``task``, or of a task drawn by the training mixture's weights."""
    name = task or rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
    return TASKS[name].make(rng, split)


def prompt_template(task: str) -> str:
    """Template around the user's raw text: the instruction, then ``{text}``."""
    return TASKS[task].INSTRUCTION + "\n{text}"


def instructed(item: Item) -> str:
    """The user's turn for ``item``: instruction and content."""
    return prompt_template(item.task).replace("{text}", item.content)


def held_out(task: str, count: int, seed: int = 2402) -> list[Item]:
    """The first ``count`` test items of ``task``; the same list for the same seed."""
    rng = random.Random(f"{task}-{seed}")
    return [TASKS[task].make(rng, "test") for _ in range(count)]


def generator_hash() -> str:
    """A digest of this package's source files, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
