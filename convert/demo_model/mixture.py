"""Training items: lines of the written text with names and numbers exchanged.

A line teaches its names along with its wording. Exchanged for others, the same in input and answer,
they can only be copied. Longer inputs, which are made of items, have no answer of their own: the
tuned base answers them, and streams learn from that.
"""

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

from .errors import with_errors
from .tasks import TaskItem, repeats_typed_text

TEXT = Path(__file__).parent / "text"

_AS_WRITTEN = 0.15
"""Share of the lines in which nothing is exchanged."""
_COINED = 0.3
"""Share of the exchanged names that exist nowhere."""
_UNCHANGED = 0.35
"""Share of the proofreading items without errors."""
_COUNTS, _COUNT_WEIGHTS = (1, 2, 3, 4, 5), (45, 25, 15, 9, 6)
"""Sentences of a proofreading item."""

_LISTS = "women", "men", "surnames", "cities", "countries"
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_NUMBER = re.compile(r"(?<![\w.:,/-])\d+(?![\w:/%-]|[.,]\d)")
_RANGES = {1: (2, 9), 2: (10, 28), 3: (100, 999), 4: (1950, 2029)}
"""Ranges of numbers by their digits: two digits are mostly days, four are years."""
_SYLLABLES = (
    "ba dra el fi gro hul im ja kor lu mi nes or pri que ra ska tor ul vi wen xa yo zim".split()
)
_LETTERS = "proofread", "friendly", "professional", "concise", "key_points"
_GREETINGS = (
    "Hi all,|Hello,|Dear {name},|Hi {name},|hey {name}|Good morning,|Hi team,|Dear Mr {name},|"
    "Dear Ms {name},|dear all,|{name},|To everyone in the office,"
).split("|")
_SIGNATURES = (
    "Best,\n{name}|Best regards,\n{name}|Thanks,\n{name}|Kind regards\n{name}|thx\n{name}|"
    "See you soon,\n{name}|{name}|Yours sincerely,\n{name}|Cheers, {name}"
).split("|")
_NAMES = (
    "Anna Ben Carla Deepak Ewa Farid Grace Henrik Ines Jamal Keiko Liam Maria Noor Oskar Petra "
    "Quentin Rosa Samir Tilda Uma Yusuf"
).split()
_BULLETS = "- ", "* ", "{number}. ", "{number}) "


def draw(rng: random.Random, task: str) -> TaskItem:
    """One training item of a task, which repeats no eight words in a row of a typed text."""
    while True:
        item = _drawn(rng, task)
        if not repeats_typed_text(item.content) and not repeats_typed_text(item.target):
            return item


def _drawn(rng: random.Random, task: str) -> TaskItem:
    if task != "proofread":
        item = rng.choice(written(task))
        return item if rng.random() < _AS_WRITTEN else exchanged(item, rng)
    sentences = _lines(f"sentences-{rng.choice(('us', 'uk'))}.txt")
    count = rng.choices(_COUNTS, _COUNT_WEIGHTS)[0]
    start = rng.randrange(len(sentences) - count)
    right = " ".join(sentences[start : start + count])
    right = exchanged(TaskItem(right, right), rng).target
    return TaskItem(right if rng.random() < _UNCHANGED else with_errors(right, rng), right)


@cache
def _lines(name: str) -> list[str]:
    return (TEXT / name).read_text(encoding="utf-8").splitlines()


def _values(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _lines(f"{name}.jsonl")]


@cache
def written(task: str) -> list[TaskItem]:
    """The written lines of a task, but for ``proofread``."""
    if task == "sql":
        return [
            TaskItem(f"table {v['table']}: {v['question']}", v["query"]) for v in _values("tables")
        ]
    if task == "key_points":
        return [
            TaskItem(v["text"], "; ".join(f"- {p}" for p in v["points"])) for v in _values("notes")
        ]
    if task == "summarize":
        return [TaskItem(v["text"], v["summary"]) for v in _values("dialogues")]
    if task == "describe":
        return [TaskItem(v["record"], v["text"]) for v in _values("records")]
    return [TaskItem(v["text"], v["rewrite"]) for v in _values("rewrites") if v["tone"] == task]


def exchanged(item: TaskItem, rng: random.Random) -> TaskItem:
    """Exchange names, weekdays and numbers of an input, wherever input and answer have them."""
    new = _other_names(item, rng) | _other_numbers(item, rng)
    if not new:
        return item
    longest_first = sorted(map(re.escape, new), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.:,/-])(?:{'|'.join(longest_first)})(?![^\W_s]|@|\d|[:/%-]\w)")
    return TaskItem(
        *(pattern.sub(lambda m: new[m[0]], text) for text in (item.content, item.target))
    )


@cache
def _list_of() -> dict[str, str]:
    """The list of each name that is no common word, too."""
    lines = [*_lines("sentences-us.txt"), *_lines("sentences-uk.txt")]
    for name in ("dialogues", "rewrites", "notes"):
        lines += [value["text"] for value in _values(name)]
    words = {word for line in lines for word in re.findall(r"\b[a-z]+\b", line)}
    names = {name: kind for kind in _LISTS for name in _lines(f"lists/{kind}.txt")}
    return {name: kind for name, kind in names.items() if name.lower() not in words}


def _other_names(item: TaskItem, rng: random.Random) -> dict[str, str]:
    both = f"{item.content} {item.target}"
    words = dict.fromkeys(re.findall(r"\b[A-Z][^\W\d_]+", item.content))
    new: dict[str, str] = {}
    days = [word for word in words if word in _WEEKDAYS]
    if set(days) == set(_WEEKDAYS) & set(re.findall(r"[A-Z][a-z]+?day", both)):
        new.update(zip(days, rng.sample(_WEEKDAYS, len(days)), strict=True))
    for name in words:
        kind = _list_of().get(name)
        if kind is None or re.search(rf"\b{name.lower()}\b", both):
            continue
        other = rng.choice(_lines(f"lists/{kind}.txt"))
        if rng.random() < _COINED:
            other = "".join(rng.choices(_SYLLABLES, k=rng.choice((2, 2, 3)))).title()
        if other not in both and other not in new.values():
            new[name] = other
    return new


def _other_numbers(item: TaskItem, rng: random.Random) -> dict[str, str]:
    """Numbers of as many digits in the same order; none where the answer has computed with some."""
    numbers = set(_NUMBER.findall(item.content))
    if not set(re.findall(r"\d+", item.target)) <= set(re.findall(r"\d+", item.content)):
        return {}
    new: dict[str, str] = {}
    for digits, (least, most) in _RANGES.items():
        old = sorted((n for n in numbers if len(n) == digits and n not in "01"), key=int)
        others = sorted(rng.randint(least, most) for _ in old)
        if len(set(others)) == len(old):
            new |= dict(zip(old, map(str, others), strict=True))
    return new


def longer(rng: random.Random, task: str) -> str:
    """Draw what a user might type at length: letters, lists, long conversations."""
    while True:
        text = _drawn_longer(rng, task)
        if not repeats_typed_text(text):
            return text


def _drawn_longer(rng: random.Random, task: str) -> str:
    def contents(least: int, most: int) -> list[str]:
        return [draw(rng, task).content for _ in range(rng.randint(least, most))]

    if task == "summarize":
        return "\n".join(contents(1, 3))
    if task not in _LETTERS:
        return draw(rng, task).content
    if rng.random() < 0.25:
        bullet = rng.choice(_BULLETS)
        lines = enumerate(contents(3, 7), 1)
        return "\n".join(bullet.format(number=number) + line for number, line in lines)
    paragraphs = [" ".join(contents(1, 2)) for _ in range(rng.randint(2, 4))]
    ends = [rng.choice(x).format(name=rng.choice(_NAMES)) for x in (_GREETINGS, _SIGNATURES)]
    return rng.choice(("\n\n", "\n\n", "\n")).join((ends[0], *paragraphs, ends[1]))
