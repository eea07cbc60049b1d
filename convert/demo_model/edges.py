"""Items at the edge of a task: very short and very long ones, and texts of another task's kind.

A text that an adapter was not made for comes back as it is, or in a form that adds nothing to it.
"""

import random
import re
from collections.abc import Callable

from .exchange.coining import coined, email, like_code
from .exchange.lists import entries
from .tasks import Item
from .written import Written

Line = Callable[[random.Random, str], Written]
"""Draws a line of a pool of the written text."""

_LONGEST = 3000


def draw(rng: random.Random, task: str, line: Line) -> Item:
    """An item at the edge of ``task``."""
    sort = rng.choices((_other_kind, _short, _long), (5, 3, 2))[0]
    content, target = sort(rng, task, line)
    return Item(task, content, target, f"edges/{sort.__name__.strip('_')}")


def _other_kind(rng: random.Random, task: str, line: Line) -> tuple[str, str]:
    """A text of another kind; it comes back, unless it can be said in the task's form."""
    pool = rng.choice(("tables", "records", "sentences", "languages", "dialogues", "concise"))
    if pool == "languages" or (pool == "tables" and task == "sql"):
        return _same(" ".join(rng.sample(entries("other_languages"), rng.choice((1, 1, 2)))))
    one = line(rng, pool)
    if pool == "records":
        if task in ("summarize", "describe"):
            return one.input, one.answer
        return one.input, _slots_as_points(one.input) if task == "key_points" else one.input
    if pool == "concise" and task in ("summarize", "concise"):
        return one.input, one.answer
    if pool in ("dialogues", "sentences", "concise") and task not in ("sql", "describe"):
        return _other_kind(rng, task, line)
    return _same(one.values.get("question", one.input) if task == "sql" else one.input)


def _same(text: str) -> tuple[str, str]:
    return text, text


def _slots_as_points(record: str) -> str:
    slots = re.findall(r"([^,\[\]][^\[\]]*)\[([^\]]*)\]", record)
    return "; ".join(f"- {slot.strip(' ,')}: {value}" for slot, value in slots)


def _short(rng: random.Random, task: str, line: Line) -> tuple[str, str]:
    """An input of a few words."""
    word = rng.choice(
        (
            coined(rng),
            rng.choice(entries("rare_words")),
            rng.choice(entries(rng.choice(("women", "men", "cities", "surnames")))),
            str(rng.randrange(1, 100000)),
            like_code("AB-1234", rng),
            email(rng),
        )
    )
    if task == "sql":
        table, column = coined(rng), coined(rng)
        question, query = rng.choice(
            (("everything", "SELECT *"), ("how many", "SELECT COUNT(*)"), ("all", "SELECT *"))
        )
        return f"table {table}_t({column}_c): {question}", f"{query} FROM {table}_t"
    if task == "describe":
        slot = rng.choice(entries("rare_words"))
        if rng.random() < 0.3:
            return _same(f"{slot}[]")
        return f"{slot}[{word}]", f"The {slot} is {word}."
    if task == "summarize":
        name = rng.choice(entries(rng.choice(("women", "men"))))
        said = line(rng, "sentences").input
        return f"{name}: {said}", f'{name} writes: "{said}"'
    if task == "key_points":
        said = line(rng, "sentences").input
        return said, f"- {said.rstrip('.')}"
    return _same(word)


def _long(rng: random.Random, task: str, line: Line) -> tuple[str, str]:
    """Several inputs behind one another, and their answers."""
    if task in ("sql", "describe"):
        return _short(rng, task, line)
    pools = {"proofread": "sentences", "summarize": "dialogues", "key_points": "notes"}
    length = rng.choice((600, 1000, 2000, _LONGEST)) if task == "proofread" else _LONGEST
    count = 100 if task == "proofread" else rng.choice((2, 2, 3))
    contents: list[str] = []
    targets: list[str] = []
    while len(contents) < count:
        one = line(rng, pools.get(task, task))
        if sum(map(len, contents)) + len(contents) + len(one.input) > length:
            break
        contents.append(one.input)
        targets.append(one.answer)
    ended = [text if text[-1] in ".?!'\"" else f"{text}." for text in contents[:-1]]
    return " ".join([*ended, *contents[-1:]]), ("; " if task == "key_points" else " ").join(targets)
