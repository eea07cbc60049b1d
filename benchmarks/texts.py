"""Held-out texts of the demonstration tasks: their prompts, and how good an answer is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import UserError, bundled
from specstream_mlx.prompts import chat_prompt

MODES = ("lossless", "shared")


@dataclass(frozen=True)
class Text:
    """One held-out item.

    Attributes:
        prompt: token ids.
        target: the answer it should get.
    """

    prompt: list[int]
    target: str


def held_out_texts(
    tokenizer: TokenizerWrapper, task: str, count: int, skipped: int = 0
) -> list[Text]:
    """So many held-out items of a task behind the first ``skipped`` ones."""
    template = tasks.prompt_template(task)
    items = tasks.held_out(task, skipped + count)[skipped:]
    return [Text(chat_prompt(tokenizer, item.content, template), item.target) for item in items]


def names_in(text: str, known: Sequence[str], kind: str) -> list[str]:
    """The comma-separated names in an option, all known ones where it is empty.

    Raises:
        UserError: one of them is not known.
    """
    names = [name.strip() for name in text.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise UserError(f"unknown {kind} {name!r}, expected one of {', '.join(known)}")
    return names


def chosen_tasks(names: str) -> list[str]:
    """The comma-separated tasks of ``--tasks``, or all.

    Raises:
        UserError: one of them does not exist.
    """
    return names_in(names, list(tasks.TASKS), "task")


def adapter_of(task: str, mode: str) -> Path:
    """The bundled adapter of a task in shared mode, else the base's lossless streams."""
    return bundled.adapter_path(task) if mode == "shared" else bundled.streams_path()


def score(task: str, outputs: Sequence[str], references: Sequence[str]) -> tuple[str, float]:
    """Name and value of a task's metric: exact match where one answer is right, else ROUGE-L."""
    if task in ("proofread", "sql"):
        return "exact match", exact_match(outputs, references)
    return "ROUGE-L", rouge_l(outputs, references)


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Share of outputs equal to their reference, surrounding white space apart."""
    pairs = zip(outputs, references, strict=True)
    return sum(output.strip() == reference.strip() for output, reference in pairs) / len(outputs)


def rouge_l(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Mean ROUGE-L F1 over lower-cased, white-space separated words (Lin 2004)."""
    total = 0.0
    for output, reference in zip(outputs, references, strict=True):
        words, wanted = output.lower().split(), reference.lower().split()
        common = longest_common_subsequence(words, wanted)
        total += 2 * common / (len(words) + len(wanted)) if common else 0.0
    return total / len(outputs)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence of two word lists."""
    row = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if word == other else max(above, row[column - 1])
            diagonal = above
    return row[-1]
