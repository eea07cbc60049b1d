"""The written text and the items drawn from it: form, exchanges, errors, and no test text."""

import json
import random
import re
import sqlite3
from collections import Counter

import pytest
from specstream_mlx.convert.demo_model import errors, mixture, tasks


@pytest.fixture(scope="module")
def sentences():
    return mixture._lines("sentences-us.txt") + mixture._lines("sentences-uk.txt")


@pytest.fixture(scope="module")
def typed_runs():
    """All eight words in a row of the typed texts, by a reading of their files of its own."""
    found = set()
    for path in tasks.TYPED.glob("*/*"):
        text = path.read_text()
        values = map(json.loads, text.splitlines()) if path.suffix == ".jsonl" else ()
        texts = [text for v in values for text in (v["input"], *v["accepted"])]
        for line in texts or text.splitlines():
            words = re.findall(r"\w+", line.lower())
            found |= {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}
    return found


def shared(text, typed_runs):
    return {" ".join(run) for run in tasks.word_runs(text)} & typed_runs


def test_the_written_text_is_whole_and_has_nothing_of_the_typed(sentences, typed_runs):
    assert len(typed_runs) > 1000 and len(sentences) > 6000
    lines = [tasks.TaskItem(text, text) for text in sentences]
    for task in tasks.TASKS:
        lines += mixture.written(task) if task != "proofread" else []
    assert len(lines) > 13000 and all(item.content.strip() and item.target for item in lines)
    assert not [i for i in lines for t in (i.content, i.target) if shared(t, typed_runs)]


def test_exchanged_queries_run():
    """On their tables; their values stand in their questions."""
    rng = random.Random(7)
    for item in rng.sample(mixture.written("sql"), 500):
        for one in (item, mixture.exchanged(item, rng)):
            tables, question = one.content.removeprefix("table ").split("): ", 1)
            database = sqlite3.connect(":memory:")
            for name, columns in re.findall(r"(\w+)\(([^)]*)\)", f"{tables})"):
                quoted = ", ".join(f'"{column.strip()}"' for column in columns.split(","))
                database.execute(f"CREATE TABLE {name}({quoted})")
            database.execute(f"EXPLAIN {one.target}")
            for value in re.findall(r"'([^']*)'", one.target):
                assert value in ("yes", "no") or value.strip("%") in question, one


def test_no_item_has_eight_words_in_a_row_of_a_typed_text(typed_runs, monkeypatch):
    """The same state draws the same items."""
    first, second = random.Random(5), random.Random(5)
    for task in tasks.TASKS:
        items = [mixture.draw(first, task) for _ in range(120)]
        assert items == [mixture.draw(second, task) for _ in range(120)]
        long = [mixture.longer(random.Random(seed), task) for seed in range(40)]
        texts = [text for item in items for text in item] + long
        assert not [text for text in texts if shared(text, typed_runs)]
    leaking = tasks.TaskItem("x", sorted(typed_runs)[0])
    drawn = iter([leaking, leaking, good := tasks.TaskItem("x", "y")])
    monkeypatch.setattr(mixture, "_drawn", lambda rng, task: next(drawn))
    assert mixture.draw(random.Random(0), "concise") == good


def test_errors_leave_numbers_quotations_and_addresses(sentences):
    rng = random.Random(0)
    changed = 0
    for text in rng.sample(sentences, 600):
        wrong = errors.with_errors(text, rng)
        changed += wrong != text
        assert Counter(re.findall(r"\d+", text)) == Counter(re.findall(r"\d+", wrong))
        assert all(quotation in wrong for quotation in re.findall(r'"[^"]*"', text))
    assert changed > 595
    for seed in range(40):
        wrong = errors.with_errors("Write to ana@post.example before noon.", random.Random(seed))
        assert "ana@post.example" in wrong
