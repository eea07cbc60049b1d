"""A line of written text and its exchanges."""

import random
import re
from functools import cached_property

from ..written import Written
from . import finding, prose
from .tables import TableExchanger

_SHUFFLED_RECORDS = 0.5
_FIRST_STAYS = 0.8  # of the shuffled ones


class Exchanger:
    """The exchanges of one line; what can be exchanged is looked for once."""

    def __init__(self, line: Written) -> None:
        self.line = line
        names = {"dialogues": ("summary",), "rewrites": ("rewrite",), "records": ("text",)}
        self._names = ("record" if line.kind == "records" else "text", *names.get(line.kind, ()))

    @cached_property
    def _tables(self) -> TableExchanger:
        return TableExchanger(**self.line.values)

    @cached_property
    def _found(self) -> finding.Found:
        values = self.line.values
        return finding.find([values[name] for name in self._names] + values.get("points", []))

    def draw(self, rng: random.Random) -> Written:
        """The line with other names, numbers and things."""
        values = dict(self.line.values)
        if self.line.kind == "tables":
            made = self._tables.draw(rng)
            values.update(zip(("table", "question", "query"), made, strict=True))
            return Written(self.line.kind, self.line.file, values)
        new = prose.new_values(self._found, rng)
        texts = [
            prose.filled(text, spans, new)
            for text, spans in zip(self._found.texts, self._found.spans, strict=True)
        ]
        values.update(zip(self._names, texts, strict=False))
        if self.line.kind == "notes":
            values["points"] = texts[1:]
        if self.line.kind == "records":
            values["record"] = _reordered(values["record"], rng)
        return Written(self.line.kind, self.line.file, values)


def _reordered(record: str, rng: random.Random) -> str:
    """A record's slots in another order, half the time; the text does not depend on it."""
    slots = re.findall(r"[^,\[\]][^\[\]]*\[[^\]]*\]", record)
    slots = [slot.strip(" ,") for slot in slots]
    if ", ".join(slots) != record or rng.random() >= _SHUFFLED_RECORDS:
        return record
    first = slots[:1] if rng.random() < _FIRST_STAYS else []
    rest = slots[len(first) :]
    rng.shuffle(rest)
    return ", ".join(first + rest)
