"""``benchmark speedup``: its suites, a model of the user's, and what it says of mistakes."""

import json

import command_line
import pytest
from specstream_mlx.benchmarks import speedup


def run(*arguments):
    return command_line.run("benchmark", "speedup", *arguments)


def rows_of(directory):
    (path,) = directory.glob("*.json")
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


PROMPTS = "hello there my friend\nthe report is late\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a file of prompts."""
    (tmp_path / "mine.txt").write_text(PROMPTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


OWN = ("--prompts", "mine.txt", "--rounds", 1, "--max-tokens", 24)


def test_a_model_and_prompts_of_the_users(base, streams, here):
    result = run("--model", base, "--adapter-path", streams, *OWN)
    assert result.exit_code == 0, result.output
    values, table = rows_of(here)
    assert values["facts"]["texts"] == "prompts of mine.txt"
    assert values["facts"]["model"] == str(base)
    rows = {row["method"]: row for row in values["rows"]}
    assert rows.keys() == {"mlx_lm", *speedup.SUITES["rule"].ways["lossless"]}
    for row in rows.values():
        assert (row["task"], row["items"], row["same_output_as_plain"]) == ("mine", 2, 2)
    assert "quality" not in table
    assert result.stdout.strip() == table.strip()


def test_a_model_without_streams_drafts_by_lookup_alone(base, here):
    result = run("--model", base, *OWN, "--output", here / "results")
    assert result.exit_code == 0, result.output
    rows = rows_of(here / "results")[0]["rows"]
    assert [row["method"] for row in rows] == ["mlx_lm", "the rule", "likely tree, lookup"]
    assert {row["extra_parameters"] for row in rows} == {0}
    assert sorted(path.name for path in here.iterdir()) == ["mine.txt", "results"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--suite", "speedup"], "every way of this --suite drafts with streams, and no streams"),
        (["--writers", "base"], "--writers was given with a model or an adapter of yours"),
    ],
)
def test_a_bare_model_is_refused_what_needs_streams(base, here, flags, sentence):
    result = run("--model", base, *OWN, *flags)
    assert sentence in command_line.refusal(result)
    assert [path.name for path in here.iterdir()] == ["mine.txt"]


def test_another_text_than_plain_decodings_ends_with_an_error(capsys, monkeypatch):
    monkeypatch.setattr(speedup.device, "backend", lambda: "cpu")
    row = {"task": "sql", "writer": "adapters", "method": "chain", "items": 4}
    speedup.check_texts([row | {"same_output_as_plain": 4}])
    with pytest.raises(SystemExit) as error:
        speedup.check_texts([row | {"same_output_as_plain": 3}])
    assert error.value.code == 1
    sentence = "error: sql, adapters, chain: 1 of 4 texts differ from plain decoding, expected none"
    assert capsys.readouterr().err.strip() == sentence


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--tasks", "sql,poem"], "unknown task 'poem', expected one of "),
        (["--writers", "shared"], "expected one of base, adapters"),
        (["--tasks", "concise", "--writers", "adapters"], "compares nothing, expected base"),
        (["--model", "somewhere"], "the model directory somewhere does not exist"),
        (["--prompts", "x.txt", "--texts", "dev"], "--prompts and --texts were both given"),
        (["--name", "../../x/y"], "--name: found '../../x/y', expected a part"),
    ],
)
def test_a_mistake_ends_with_one_sentence(toy, flags, sentence):
    result = run(*flags)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
