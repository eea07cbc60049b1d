"""The demonstration model's written text: its form and size, and that no test text stands in it."""

import re
import sqlite3
from collections import Counter

import pytest
from specstream_mlx.convert.demo_model import written
from typed_texts import eight_words

LEAST = {
    "sentences": 6000,
    "dialogues": 1200,
    **dict.fromkeys(("friendly", "professional", "concise"), 1000),
    "notes": 600,
    "tables": 1500,
    "records": 1000,
}


@pytest.fixture(scope="module")
def lines():
    return list(written.read_all())


def test_there_is_enough_of_each_kind(lines):
    found = Counter(line.values.get("tone", line.kind) for line in lines)
    assert all(found[kind] >= count for kind, count in LEAST.items()), found
    assert len({line.values["table"] for line in lines if line.kind == "tables"}) >= 200


def test_nothing_stands_there_twice(lines):
    found = Counter((line.kind, line.input.lower()) for line in lines)
    assert not [text for text, count in found.items() if count > 1]


def test_queries_run_and_their_values_stand_in_the_question(lines):
    databases = {}
    for line in lines:
        if line.kind != "tables":
            continue
        table, question, query = (line.values[name] for name in ("table", "question", "query"))
        if table not in databases:
            databases[table] = sqlite3.connect(":memory:")
            for name, columns in re.findall(r"(\w+)\(([^)]*)\)", table):
                quoted = ", ".join(f'"{column.strip()}"' for column in columns.split(","))
                databases[table].execute(f"CREATE TABLE {name}({quoted})")
        databases[table].execute(f"EXPLAIN {query}")
        for value in re.findall(r"'([^']*)'", query):
            assert value in ("yes", "no") or value.strip("%") in question, (question, query)
    assert len(databases) >= 200


def test_no_eight_words_in_a_row_are_those_of_a_test_text(lines):
    test = eight_words()
    shared = [line for line in lines if test & (written.ngrams(line.input, 8))]
    shared += [line for line in lines if test & (written.ngrams(line.answer, 8))]
    assert not shared, f"{len(shared)} lines"


@pytest.mark.parametrize(
    ("kind", "line", "sentence"),
    [
        ("sentences", " ", "found nothing"),
        ("notes", "[]", "expected an object with text, points"),
        ("notes", '{"text": "a", "points": []}', "points is"),
        ("rewrites", '{"tone": "rude", "text": "a", "rewrite": "b"}', "tone is 'rude'"),
        ("records", "{", "line 1"),
    ],
)
def test_a_line_that_is_not_of_its_kind_is_named(tmp_path, kind, line, sentence):
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "a.jsonl").write_text(line + "\n")
    with pytest.raises(written.WrittenTextError, match=r"a\.jsonl line 1") as error:
        list(written.read(kind, tmp_path))
    assert sentence in str(error.value)
