"""Benchmarks of the demonstration model, each for one short text on the toy."""

import json

import pytest
from command_line import run_program

from benchmarks import answers, step_times, texts


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_a_short_run_of_answers_has_rows_of_both_writers(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "PROSE_ADAPTER", "sql")  # the toy has no other
    flags = "--items 1 --max-tokens 12 --texts dev --timed 1 --rounds 1 --tasks sql,prose"
    run_program(answers.main, *flags.split(), "--output", tmp_path)
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert {row["writer"] for row in rows} == {"base", "adapters"}
    assert all(row["same_output_as_plain"] == 1 for row in rows)
    assert path.with_suffix(".md").read_text()


def test_a_step_takes_longer_than_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(step_times, "VOCABULARY", 64)
    run_program(step_times.main, "--models", "2x64", "--steps", 2, "--output", tmp_path)
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert {row["method"].split(",")[0] for row in rows} >= {"mlx_lm", "lossless"}
    assert all(0 < row["first"] <= row["last"] <= row["step"] for row in rows)
