"""The written text that the demonstration model learns from: its kinds, files and checks.

Every file lies in ``text/KIND``. People's messages are written one by one, for this purpose; what
is exchanged in them later (names, numbers, errors) is no matter of these files.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["sentences", "dialogues", "rewrites", "notes", "tables", "records"]
"""``sentences``: right as they stand, one a line. The others are JSON lines: ``dialogues`` with a
summary, ``rewrites`` of a message in a tone, ``notes`` with key points, questions to ``tables``
with a query, ``records`` with a description."""

TEXT = Path(__file__).parent / "text"
TONES = ("friendly", "professional", "concise")

_FIELDS: dict[str, dict[str, type]] = {
    "dialogues": {"text": str, "summary": str},
    "rewrites": {"tone": str, "text": str, "rewrite": str},
    "notes": {"text": str, "points": list},
    "tables": {"table": str, "question": str, "query": str},
    "records": {"record": str, "text": str},
}


class WrittenTextError(ValueError):
    """A line that is not of its kind; the message names file, line and what was expected."""


@dataclass(frozen=True)
class Written:
    """One line.

    Attributes:
        kind: which.
        file: it stands in, without ending; that of sentences ends in ``-us`` or ``-uk``.
        values: the fields of its kind; sentences have ``text``.
    """

    kind: Kind
    file: str
    values: dict[str, Any]

    @property
    def input(self) -> str:
        """Text that a person would type."""
        if self.kind == "tables":
            return f"table {self.values['table']}: {self.values['question']}"
        return self.values["record" if self.kind == "records" else "text"]

    @property
    def answer(self) -> str:
        """Text that the model is to write; a sentence is its own correction."""
        if self.kind == "notes":
            return "; ".join(f"- {point}" for point in self.values["points"])
        names = {"dialogues": "summary", "rewrites": "rewrite", "tables": "query"}
        return self.values[names.get(self.kind, "text")]


def read(kind: Kind, directory: Path = TEXT) -> Iterator[Written]:
    """Yield the lines of a kind, file by file in order of their names.

    Raises:
        WrittenTextError: a line is not of its kind.
    """
    for path in sorted((directory / kind).iterdir()):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
            try:
                yield Written(kind, path.stem, _values(kind, line))
            except ValueError as error:
                raise WrittenTextError(f"{path} line {number}: {error}") from None


def read_all(directory: Path = TEXT) -> Iterator[Written]:
    """Yield all lines of all kinds."""
    for kind in get_args(Kind):
        yield from read(kind, directory)


def _values(kind: Kind, line: str) -> dict[str, Any]:
    if kind == "sentences":
        if not line.strip():
            raise ValueError("found nothing, expected a sentence")
        return {"text": line}
    values = json.loads(line)
    if not isinstance(values, dict) or set(values) != set(_FIELDS[kind]):
        raise ValueError(f"expected an object with {', '.join(_FIELDS[kind])}")
    for name, expected in _FIELDS[kind].items():
        if not isinstance(values[name], expected) or not values[name]:
            raise ValueError(f"{name} is {values[name]!r}, expected a {expected.__name__}")
    if kind == "rewrites" and values["tone"] not in TONES:
        raise ValueError(f"tone is {values['tone']!r}, expected one of {TONES}")
    return values


def ngrams(text: str, length: int) -> set[tuple[str, ...]]:
    """The n-grams of a text's words, lower-cased and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
