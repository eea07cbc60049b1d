"""Prompts of public data sets: what is made of their files, and no test question among them."""

import bz2
import json
import re

import pytest
from command_line import run_program
from specstream_mlx.convert.demo_model import prompt_sources
from specstream_mlx.convert.demo_model.prompt_sources import SOURCES, lines_of
from tiny_training import rows_of, write_rows

from specstream_mlx.errors import UserError

NEWS = [f"Satz {at} von heute steht hier ganz allein." for at in range(30)]
SENTENCES = (
    "'' It '' was short , wasn 't it ( or not ) .\t'' It '' was short . <::::> Wasn 't it ?\n"
)
TASK = {"instruction": "Find the verb.", "instances": [{"input": "She reads."}]}


def node(role, text, *replies):
    return {"text": text, "role": role, "replies": list(replies)}


def turn(speaker, text, act):
    return {"speaker": speaker, "utterance": text, "frames": [{"actions": [{"act": act}]}]}


def article(at):
    passages = [
        {
            "context": f"Passage {name} tells much.",
            "qas": [{"question": f"What is number {name}.{number}?"} for number in range(4)],
        }
        for name in (at, -at, f"{at}x", f"{at}y")
    ]
    return {"title": f"A_{at}", "paragraphs": passages}


def query(table, question, *columns):
    named = ", ".join(f"TABLEalias0.{column}_FIELD" for column in columns)
    return {"sentences": [{"original": question, "table-id": table}], "sql": [f"SELECT {named} ;"]}


QUERIES = [
    query("1-7-2", "Who won?", "WINNER", "YEAR", "SERIES/RANK"),
    query("1-7-3", "Who lost?", "LOSER"),
]
REPLIES = node("prompter", "Another one?"), node("prompter", "Is it big?")
TREE = node("prompter", "Name a fish.", node("assistant", "Pike.", *REPLIES))
MESSAGES = [
    {"user_message_id": name, "parent_message_id": parent, "text": text, "role": role}
    for name, parent, text, role in (
        ("a", None, "Can rust be removed?", "prompter"),
        ("b", "a", "Yes.", "assistant"),
        ("c", "b", "How?", "prompter"),
    )
]
TURNS = [
    turn("USER", "I want to eat.", "INFORM_INTENT"),
    turn("SYSTEM", "Where?", "REQUEST"),
    turn("USER", "In Oakland.", "INFORM"),
    turn("SYSTEM", "Take Rosa's.", "OFFER"),
    turn("USER", "Fine.", "AFFIRM"),
    turn("USER", "What is their address?", "REQUEST"),
]
CHATS = "Open-Assistant/model/model_eval/manual/data"
NEWS_FILES = ["src.eng", *(f"ref.{code}" for code, _ in prompt_sources.LANGUAGES.values())]
FILES = {
    "NTREX/DOCUMENT_IDS.tsv": "".join(f"news.{at // 3}\n" for at in range(30)),
    **{f"NTREX/NTREX-128/newstest2019-{name}.txt": "\n".join(NEWS) for name in NEWS_FILES},
    "text2sql-data/data/wikisql.json.bz2": bz2.compress(json.dumps(QUERIES).encode()),
    **{f"wiki-split/{name}.tsv": SENTENCES for name in ("tune", "validation")},
    "xquad/xquad.en.json": {"data": [article(1), article(2)]},
    f"{CHATS}/en_100_tree.jsonl": {"prompt": TREE},
    f"{CHATS}/en_100_text.jsonl": json.dumps("Name a fish."),
    f"{CHATS}/prompt_lottery_en_250_text.jsonl": json.dumps("Why is the sky blue?"),
    "Open-Assistant/backend/test_data/realistic/realistic_seed_data.json": MESSAGES,
    "self-instruct/data/seed_tasks.jsonl": TASK,
    "self-instruct/human_eval/user_oriented_instructions.jsonl": TASK,
    "awesome-chatgpt-prompts/prompts.csv": '"act","prompt"\n"Tea","Be ""the"" tea,\nplease."\n',
    **{
        f"dstc8-schema-guided-dialogue/train/dialogues_{at:03}.json": [
            {"dialogue_id": f"{at}_0", "turns": TURNS}
        ]
        for at in (*range(1, 37), *range(95, 104))
    },
}
"""A few lines of each source, in the form that it has."""


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    root = tmp_path_factory.mktemp("clones")
    for place, value in FILES.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def texts_of(lines):
    return [line.get("prompt", line.get("turns")) for line in lines]


def written(clones, output, *flags):
    """What the command writes, by source."""
    run_program(prompt_sources.main, "--clones", clones, "--output", output, *flags)
    lines = rows_of(output / "train.jsonl") + rows_of(output / "valid.jsonl")
    assert {tuple(line) for line in lines} == {("prompt", "source"), ("turns", "source")}
    return {name: texts_of(v for v in lines if v["source"] == name) for name in SOURCES}


@pytest.fixture(scope="module")
def made(clones, tmp_path_factory):
    return written(clones, tmp_path_factory.mktemp("made"))


def test_sources_become_prompts_as_people_write_them(made):
    """Sentences of one document; tables with all columns; text as set; the passage asked about."""
    translations = made["ntrex"]
    assert len(translations) > 20
    assert any(prompt.startswith("Translate German to English: Satz") for prompt in translations)
    rows = [list(map(int, re.findall(r"Satz (\d+)", prompt))) for prompt in translations]
    assert max(map(len, rows)) > 1
    for row in rows:
        assert row == list(range(row[0], row[-1] + 1)) and row[0] // 3 == row[-1] // 3
    (query,) = made["wikisql"]
    for word in ("Who won?", "table_1_7_2", "winner", "year", "series_rank"):
        assert word in query
    for prompt in made["wiki-split"]:
        assert '"It" was short' in prompt
        assert not [part for part in (" ,", "( ", "<::::>") if part in prompt]
    assert {type(one) for one in made["xquad"]} == {str, list}
    for one in made["xquad"]:
        text = "\n".join(one) if isinstance(one, list) else one
        (asked,) = set(re.findall(r"What is number (\S+)\.\d\?", text))
        assert f"Passage {asked} tells much." in text
    for turns in (["Name a fish.", "Another one?"], ["Name a fish.", "Is it big?"]):
        assert turns in made["oasst"]
    assert ["Can rust be removed?", "How?"] in made["oasst"]
    followed = [turns for turns in made["oasst"] if turns[0] == "Why is the sky blue?"]
    followed += made["self-instruct"] + made["awesome-chatgpt-prompts"]
    firsts = {"Why is the sky blue?", "Find the verb.\n\nShe reads.", 'Be "the" tea,\nplease.'}
    assert {turns[0] for turns in followed} == firsts
    for turns in followed:
        assert 2 <= len(turns) <= 3
        assert set(turns[1:]) <= set(prompt_sources.WORDINGS["follow_ups"])
    asked = ["I want to eat.", "In Oakland.", "What is their address?"]
    assert sorted(made["dstc8"]) == [asked[:2], asked]


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
    turns = ["What?", f"Translate German to English: {QUESTION}", SECOND]
    return write_rows(tmp_path / "question.jsonl", [{"question_id": 1, "turns": turns}])


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


def test_what_may_never_be_there_is_not_written(clones, made, never, tmp_path):
    """A clone that is not there is named."""
    other = write_rows(tmp_path / "other.jsonl", [{"prompt": NEWS[4]}])
    assert any(NEWS[4] in prompt for prompt in made["ntrex"])
    without = written(clones, tmp_path, "--never", never, "--never", other)
    assert not any(NEWS[4] in prompt for prompt in without["ntrex"])
    assert all(without.values())
    url = f"https://github.com/google-deepmind/xquad at {SOURCES['xquad']['commit']}"
    sentence = rf"xquad: .*xquad\.en\.json is missing.*; expected a clone of {url}"
    with pytest.raises(UserError, match=sentence):
        lines_of("xquad", tmp_path, set())
