"""Prompts of public data sets: what is made of their files, and no test question among them."""

import bz2
import json

import pytest
from command_line import run_program
from specstream_mlx.convert.demo_model import prompt_sources
from specstream_mlx.convert.demo_model.prompt_sources import SOURCES, lines_of

from specstream_mlx.errors import UserError

QUERIES = [
    {
        "sentences": [{"original": "Who won?", "table-id": "1-7-2"}],
        "sql": [f"SELECT TABLEalias0.{name}_FIELD ;" for name in ("WINNER", "YEAR", "SERIES/RANK")],
    }
]


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """Two of the sources, a few lines each, in the form that they have."""
    root = tmp_path_factory.mktemp("clones")
    sentences = "'' It '' was short , wasn 't it ?\t'' It '' was short . <::::> Wasn 't it ?\n"
    files = {
        "text2sql-data/data/wikisql.json.bz2": bz2.compress(json.dumps(QUERIES).encode()),
        "wiki-split/tune.tsv": sentences.encode(),
        "wiki-split/validation.tsv": sentences.encode(),
    }
    for place, content in files.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(content)
    return root


def texts_of(lines):
    return [line.get("prompt", line.get("turns")) for line in lines]


def test_sources_become_prompts_as_people_write_them(clones, tmp_path, monkeypatch):
    """Tables with all columns; text as it is set. The command writes both files."""
    for name in set(SOURCES) - {"wikisql", "wiki-split"}:
        monkeypatch.delitem(SOURCES, name)
    run_program(prompt_sources.main, "--clones", clones, "--output", tmp_path)
    files = [tmp_path / name for name in ("train.jsonl", "valid.jsonl")]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    (query,) = [line["prompt"] for line in lines if line["source"] == "wikisql"]
    for word in ("Who won?", "table_1_7_2", "winner", "year", "series_rank"):
        assert word in query
    split = [line["prompt"] for line in lines if line["source"] == "wiki-split"]
    assert split and all('"It" was short' in prompt and " ," not in prompt for prompt in split)
    (clones / "wiki-split" / "tune.tsv").unlink()
    with pytest.raises(UserError, match=r"wiki-split: .*tune\.tsv is missing.*; expected a clone"):
        lines_of("wiki-split", clones, set())


@pytest.fixture
def planted(clones, monkeypatch):
    """Makes the lines of a source from these, each with its origin."""

    def draw(lines, never=frozenset(), held_out=0, weight=1000):
        monkeypatch.setitem(prompt_sources.READERS, "ntrex", lambda clone, rng: iter(lines))
        row = {**SOURCES["ntrex"], "held_out": held_out, "weight": weight}
        monkeypatch.setitem(SOURCES, "ntrex", row)
        return lines_of("ntrex", clones, never)

    return draw


QUESTION = "Pfandhäuser boomen in Singapur , da die Krise in der Mittelschicht angekommen ist"
SECOND = "Now explain to me how the tides of the sea come about"
WORDS = QUESTION.replace(" ,", "").split()


@pytest.fixture
def never(tmp_path):
    """Questions as Spec-Bench has them."""
    path = tmp_path / "question.jsonl"
    turns = ["What?", f"Translate German to English: {QUESTION}", SECOND]
    path.write_text(json.dumps({"question_id": 1, "turns": turns}) + "\n")
    return path


def test_no_line_has_eight_words_in_a_row_of_a_test_question(planted, never):
    leaks = [
        f"Say it in English: {QUESTION}",
        " ".join(WORDS[2:10]),
        "-".join(WORDS).upper() + "!",
        ["Hello.", SECOND],
    ]
    fine = ["Something else.", " ".join(WORDS[2:9])]
    lines = list(enumerate(leaks + fine))
    assert len(planted(lines)[0]) == len(lines)
    train, _ = planted(lines, prompt_sources.runs_in(never))
    assert sorted(texts_of(train)) == sorted(fine)


def test_lines_fit_are_said_once_and_held_out_by_origin(planted):
    lines = [(at // 4, f"Line {at}.") for at in range(80)]
    train, valid = planted(lines, held_out=5, weight=60)
    origins = [{int(line["prompt"][5:-1]) // 4 for line in part} for part in (train, valid)]
    assert (len(train), len(valid)) == (60, 5)
    assert not origins[0] & origins[1]
    assert planted(lines, held_out=5, weight=60) == (train, valid)
    lines = ["Once.", "Once.", " ", "x" * 5201, ["Once.", ""], ["y" * 2600, "z" * 2600], "x" * 5200]
    train, _ = planted(enumerate(lines))
    assert sorted(map(len, texts_of(train))) == [5, 5200]
