"""One training or test item of the demonstration model's tasks.

Every task is a module of this package that offers

- ``NAME``: the task's name, also the name of its adapter (``"sql"``);
- ``INSTRUCTION``: the plain-English sentence that precedes the text when no adapter is loaded;
- ``TRAIN_TEMPLATES`` and ``TEST_TEMPLATES``: the identifiers of the templates (sentence plans,
  question forms, error types, ...) of each split; the two are disjoint;
- ``make(rng, split)``: one ``Item``, a pure function of ``rng`` and ``split``.
"""

from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Item:
    """One (content, target) pair.

    Args:
        task: the task's ``NAME``.
        content: what a user types, raw: a message, ``A: .. B: ..``,
            ``table t(a, b): question`` or ``name[..], food[..]``. No instruction.
        target: the text that the model is to write.
        templates: identifiers of every template used, for checking the hold-out.
    """

    task: str
    content: str
    target: str
    templates: tuple[str, ...]
