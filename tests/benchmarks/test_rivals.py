"""``benchmark rivals``: its methods, what it writes, and how it goes on where it was stopped."""

import json

import command_line
import pytest

from benchmarks.rivals import CONTROL, methods_of
from benchmarks.runner import MLX_LM
from specstream_mlx.drafting.settings import Drafters

QUESTIONS = [(7, "coding", ["send the report", "send it again"]), (9, "qa", ["is it noon"])]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a file of questions."""
    names = ("question_id", "category", "turns")
    lines = [json.dumps(dict(zip(names, one, strict=True))) for one in QUESTIONS]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_drafters_compete_by_themselves_and_with_streams_if_they_have_what_they_need():
    assert list(methods_of(Drafters(drafter="pld"), False)) == ["pld"]
    assert list(methods_of(Drafters(drafter="pld"), True)) == ["pld", "streams", "streams + pld"]
    every = methods_of(Drafters(datastore="file"), False)
    assert "rest" in every and "draft-model" not in every
    assert all(method.drafters.drafters == (name,) for name, method in every.items())
    assert every["rest"].drafters.datastore == "file"
    assert every["pld"].drafters.datastore is None


def test_every_text_of_every_method_is_reported_once_and_kept(base, streams, here, monkeypatch):
    from specstream_mlx.benchmarks import runner

    def run():
        return command_line.run(
            *("benchmark", "rivals", "--model", base, "--adapter-path", streams),
            *("--questions", "q.jsonl", "--max-tokens", 8, "--drafter", "suffix,draft-model"),
            *("--draft-model", base, "--answers", "answers", "--runs", "runs.jsonl"),
        )

    result = run()
    assert result.exit_code == 0, result.output
    methods = ["suffix", "draft-model", "streams", "streams + suffix", "streams + draft-model"]
    (path,) = here.glob("rivals-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert {row["method"] for row in rows} == {MLX_LM, *methods}
    assert {row["task"] for row in rows} == {"mt_bench", "qa", "all", CONTROL}
    assert all(row["same_output_as_plain"] == row["items"] for row in rows)
    items = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert len(items) == 6 * (3 + 4)
    assert all(item["same_output_as_plain"] for item in items)
    for method in methods:
        assert f"| {method} |" in result.stdout
    answers = sorted(file.stem for file in (here / "answers").glob("*.jsonl"))
    assert answers == sorted([MLX_LM, *(name.replace(" + ", "-and-") for name in methods)])

    made, kept = [], (here / "runs.jsonl").read_text().splitlines()
    assert len(kept) == len(items)
    timed = runner._timed
    monkeypatch.setattr(runner, "_timed", lambda *args: made.append(1) or timed(*args))
    (here / "runs.jsonl").write_text("\n".join(kept[:-2]) + "\n")
    assert run().exit_code == 0
    assert len(made) <= 6 + 2 + 6  # warming up, what was missing, and costs


def test_draft_heads_are_refused(tmp_path):
    questions = tmp_path / "question.jsonl"
    question = {"question_id": 1, "category": "math", "turns": ["2 + 2?"]}
    questions.write_text(json.dumps(question) + "\n")
    arguments = ("--questions", questions, "--draft-head", tmp_path)
    result = command_line.run("benchmark", "rivals", *arguments)
    assert result.exit_code == 2
    assert "--draft-head was given, which benchmarks do not measure" in result.stderr
