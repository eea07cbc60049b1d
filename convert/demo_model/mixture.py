"""The training mixture: written text with its names and numbers exchanged, and a little besides.

One item in ten is a line of ``text/templates``, three in a hundred are ``edges``, all others are of
the written text.
"""

import json
import random
import re
from functools import cache
from typing import Literal

from . import edges, written
from .errors import with_errors
from .exchange import Exchanger
from .tasks import Item
from .typed_texts import repeats_test_text

_WEIGHTS = {
    "proofread": 6,
    "sql": 4,
    "summarize": 4,
    "describe": 3,
    "friendly": 3,
    "professional": 3,
    "concise": 3,
    "key_points": 3,
}
_TEMPLATES = 0.1
_EDGES = 0.03
_AS_WRITTEN = 0.15
"""Share of the lines in which nothing is exchanged."""
_UNCHANGED = 0.35
"""Share of the proofreading items without errors."""
_SENTENCES = 0.7
"""Share of the proofreading items that consist of ``sentences``."""
_COUNTS, _COUNT_WEIGHTS = (1, 2, 3, 4, 5), (45, 25, 15, 9, 6)

_KINDS = {"sql": "tables", "summarize": "dialogues", "describe": "records", "key_points": "notes"}


def draw(rng: random.Random, task: str | None = None) -> Item:
    """One training item of ``task``, or of a task drawn by the mixture's weights.

    The same state of ``rng`` gives the same item. Items that come to repeat eight words of a test
    text are drawn again.
    """
    while True:
        item = _drawn(rng, task)
        if not repeats_test_text(item.content) and not repeats_test_text(item.target):
            return item


def _drawn(rng: random.Random, task: str | None) -> Item:
    name = task or rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    sort = rng.random()
    if sort < _TEMPLATES:
        return rng.choice(_templates(name))
    if sort < _TEMPLATES + _EDGES:
        return edges.draw(rng, name, line)
    if name == "proofread":
        return _proofreading(rng)
    one = line(rng, _pool_of(name))
    return Item(name, one.input, one.answer, f"{one.kind}/{one.file}")


@cache
def _templates(task: str) -> list[Item]:
    text = (written.TEXT / "templates" / f"{task}.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, text.splitlines())
    return [Item(task, line["input"], line["answer"], f"templates/{task}") for line in lines]


def line(rng: random.Random, pool: str) -> written.Written:
    """A line of a pool (a kind, a tone, or a file of sentences), mostly with exchanges."""
    return _exchanged(rng.choice(_pools()[pool]), rng)


def _exchanged(exchanger: Exchanger, rng: random.Random) -> written.Written:
    return exchanger.line if rng.random() < _AS_WRITTEN else exchanger.draw(rng)


def _pool_of(task: str) -> str:
    return _KINDS.get(task, task)


@cache
def _pools() -> dict[str, list[Exchanger]]:
    """The lines by kind; rewrites by tone too, and sentences by file."""
    pools: dict[str, list[Exchanger]] = {}
    for one in written.read_all():
        exchanger = Exchanger(one)
        pools.setdefault(one.kind, []).append(exchanger)
        if one.kind == "rewrites":
            pools.setdefault(one.values["tone"], []).append(exchanger)
        if one.kind == "sentences":
            pools.setdefault(one.file, []).append(exchanger)
    return pools


def _proofreading(rng: random.Random) -> Item:
    count = rng.choices(_COUNTS, _COUNT_WEIGHTS)[0]
    spelling: Literal["us", "uk"] | None = None
    if rng.random() < _SENTENCES:
        file = rng.choice(_pools()["sentences"]).line.file
        chosen = [_exchanged(one, rng).input for one in rng.sample(_pools()[file], count)]
        text, source = " ".join(chosen), f"sentences/{file}"
        spelling = "us" if file.endswith("us") else "uk"
    else:
        text, source = _right_text(rng, count)
    unchanged = rng.random() < _UNCHANGED
    content = text if unchanged else with_errors(text, rng, spelling)
    return Item("proofread", content, text, source)


_INFORMAL = re.compile(
    r"\b(?:i|u|ur|r|n|im|ive|dont|cant|wont|thats|lol|omg|pls|thx|gonna|wanna|ok)\b"
    r"|[.?!] [a-z]|\.\.|[?!]{2}|[A-Z]{5}| \w+:"
)
_RIGHT = re.compile(r"[A-Z\d\"'].*[.?!]['\"]?")
_SENTENCE_END = re.compile(r"(?<=[a-z\d]{2}[.?!]) (?=[A-Z\d\"'])(?<!Mrs\. )(?<! Mr\. )(?<! Dr\. )")


def _right_text(rng: random.Random, count: int) -> tuple[str, str]:
    """Up to ``count`` sentences in a row of a text of another kind that is right as it stands."""
    while True:
        pool = rng.choice(("rewrites", "rewrites", "notes", "notes", "dialogues", "records"))
        one = line(rng, pool)
        candidates = {
            "rewrites": [one.answer, *[one.input] * (one.values.get("tone") != "professional")],
            "notes": [one.input],
            "records": [one.answer],
            "dialogues": [one.answer, *re.split(r" ?[^ .?!]+: ", one.input)],
        }[pool]
        sentences = _SENTENCE_END.split(rng.choice(candidates))
        start = rng.randrange(max(1, len(sentences) - count + 1))
        text = " ".join(sentences[start : start + count])
        if _RIGHT.fullmatch(text) and not _INFORMAL.search(text):
            return text, f"{one.kind}/{one.file}"
