"""Prompts on which the tuner measures acceptance."""

import json
from pathlib import Path

from ..config import UserError
from ..loading import SpeculativeModel

CALIBRATION_FILE = "calibration.jsonl"
"""Optional file of an adapter directory: prompts such as its users would type."""

GENERAL_PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short email that moves Thursday's meeting to Friday afternoon.",
    "List five things to check before a long trip by car, one a line.",
    "Rewrite this in a friendlier tone: The report is late again. Send it today.",
    "Write a Python function that returns the words of a text by how often they occur.",
    "Summarize in one sentence: The library opens an hour later in winter. Books can still be "
    "returned at night through the slot beside the door, and all fines are waived in December.",
    "Translate into French: Where can I buy a ticket for the evening train?",
    "A shop sells pens at 3 for 2 euros. What do 12 pens cost? Show each step.",
)
"""Everyday requests, for adapters without texts of their own."""


def calibration_prompts(model: SpeculativeModel) -> list[str]:
    """The mounted adapter's own prompts, or general ones.

    Raises:
        UserError: the adapter's file cannot be used.
    """
    path = model.adapter and model.adapter.path / CALIBRATION_FILE
    if path is None or not path.exists():
        return list(GENERAL_PROMPTS)
    return read_prompts(path)


def read_prompts(path: Path) -> list[str]:
    """Prompts from a file: a JSON object with ``prompt`` on each line, or each line one as it is.

    Raises:
        UserError: one sentence: the file, what was found and what was expected.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: see byte {error.start}") from None
    as_json = path.suffix == ".jsonl" or all(line.startswith("{") for line in lines if line.strip())
    prompts = [
        _prompt(path, number, line) if as_json else line
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise UserError(f"{path} is empty, expected a prompt on each line")
    return prompts


def _prompt(path: Path, number: int, line: str) -> str:
    expected = 'expected an object such as {"prompt": "some text"}'
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{path} line {number} is not JSON, {expected}") from None
    prompt = values.get("prompt") if isinstance(values, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"{path} line {number} has no prompt, {expected}")
    return prompt
