"""The texts that people typed for development: training is watched on them, never done."""

import json

from . import tasks
from .typed_texts import TYPED


def typed_dev(task: str, count: int) -> list[list[tasks.Item]]:
    """The first ``count`` typed texts of a task: for each an item with every accepted answer."""
    lines = (TYPED / "dev" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [
        [
            tasks.Item(task, values["input"], answer, f"typed/{task}")
            for answer in values["accepted"]
        ]
        for values in map(json.loads, lines)
    ]
