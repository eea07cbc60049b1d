"""``benchmark speedup``: its suites, a model of the user's, and texts unlike plain decoding's."""

import json
import re

import command_line
import pytest
from specstream_mlx.benchmarks import runner, speedup
from tiny_models import tiny_llama_directory


@pytest.fixture
def run(base, tmp_path, monkeypatch):
    """Runs the command in an empty directory with a file of prompts."""
    (tmp_path / "mine.txt").write_text("hello there my friend\nthe report is late\n")
    monkeypatch.chdir(tmp_path)
    own = ("--model", base, "--prompts", "mine.txt", "--rounds", 1, "--max-tokens", 24)
    return lambda *flags: command_line.run("benchmark", "speedup", *own, *flags)


def test_the_answer_comes_first_and_in_words(run, base, streams, tmp_path):
    result = command_line.succeeded(run("--adapter-path", streams))
    question, _, answer, *_ = result.stdout.splitlines()
    assert question == "How much faster is it here?"
    assert answer.startswith("On this machine drafting is ") and " mlx_lm" in answer
    (path,) = tmp_path.glob("quick-*.json")
    assert f"Writing {path.stem}.md and .json\n" in result.stderr
    methods = [row["method"] for row in json.loads(path.read_text())["rows"]]
    assert methods == ["mlx_lm", "the rule"]


def test_mlx_lm_by_itself_is_named_where_it_holds_other_arrays(run, tmp_path, monkeypatch):
    """By default a user's mlx_lm computes with the file's packed weights; on a CPU if asked for."""
    monkeypatch.setattr(runner, "_SECONDS", 0.1)
    packed = tiny_llama_directory(tmp_path / "packed", bits=4)
    for weights, more, is_named in (
        ("expanded", ("--as-stored",), True),
        ("packed", ("--as-stored",), False),
        ("expanded", (), False),
        ("expanded", ("--suite", "rule", "--as-stored"), True),
    ):
        result = command_line.succeeded(run("--model", packed, "--weights", weights, *more))
        answer = "".join(line for line in result.stdout.splitlines()[:4] if "as fast" in line)
        named = re.search(
            r" As a user runs it \(packed weights, float32\) mlx_lm writes [\d.e+]+ tokens a "
            r"second, drafting [\d.e+]+ \(mine\): [\d.]+ times as fast\.$",
            answer,
        )
        assert (named is not None) == is_named, answer


def test_a_model_and_prompts_of_the_users(run, base, streams, tmp_path):
    result = command_line.succeeded(run("--adapter-path", streams, "--suite", "rule"))
    (path,) = tmp_path.glob("*.json")
    rows = {row["method"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows.keys() == {"mlx_lm", *speedup.SUITES["rule"].ways["lossless"]}
    for row in rows.values():
        assert (row["task"], row["items"], row["same_output_as_plain"]) == ("mine", 2, 2)
    assert result.stdout.strip() == path.with_suffix(".md").read_text().strip()


def test_a_model_without_streams_drafts_by_lookup_alone(run, tmp_path):
    command_line.succeeded(run("--output", tmp_path / "results", "--suite", "rule"))
    (path,) = (tmp_path / "results").glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["method"] for row in rows] == ["mlx_lm", "the rule", "likely tree, lookup"]
    for flags, sentence in (
        (("--suite", "speedup"), "every way of this --suite drafts with streams, and no streams"),
        (("--tasks", "sql"), "--prompts and --tasks were both given"),
    ):
        assert sentence in command_line.refusal(run(*flags))


def test_another_text_than_plain_decodings_ends_with_an_error(capsys, monkeypatch):
    monkeypatch.setattr(speedup.device, "backend", lambda: "cpu")
    row = {"task": "sql", "writer": "adapters", "method": "chain", "items": 4}
    with pytest.raises(SystemExit) as error:
        speedup.check_texts([row | {"same_output_as_plain": 3}])
    assert error.value.code == 1
    sentence = "error: sql, adapters, chain: 1 of 4 texts differ from plain decoding, expected none"
    assert capsys.readouterr().err.strip() == sentence
