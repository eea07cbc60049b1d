"""Benchmarks that decode, each for short texts on tiny models or the toy."""

import json

import pytest
from command_line import run_program
from serving import tiny_resident
from tiny_models import stream_adapter_directory

from benchmarks import answers, several_adapters, step_times, texts
from benchmarks.server_load import compare, press
from specstream_mlx import bundled, demonstration


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


def test_at_once_takes_fewer_passes(base, tmp_path, monkeypatch):
    (tmp_path / "adapters").mkdir()
    for seed, name in enumerate(("friendly", "sql", "summary")):
        directory = tmp_path / "adapters" / name
        stream_adapter_directory(directory, base, mode="shared", lora_rank=4, seed=seed)
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    monkeypatch.setattr(demonstration, "base_path", lambda: base)
    flags = ("--pairs", 1, "--max-tokens", 12, "--output", tmp_path)
    run_program(several_adapters.main, *flags)
    (file,) = tmp_path.glob("several-adapters-*.json")
    (pair,) = json.loads(file.read_text())["pairs"]
    at_once, in_turn = pair["passes"]
    assert pair["tokens"] == 36 and at_once < in_turn <= 36
    assert "3 adapters, 1 pairs" in file.with_suffix(".md").read_text()


@pytest.mark.slow
def test_a_short_load(tmp_path):
    tiny = tiny_resident(tmp_path)
    service = tiny.service(most_texts=4, most_waiting=4)
    load = press(service, 8, 12, 24)
    assert compare(load, tiny.models, tiny.tokenizer, 24) == []
    known = {"complete", "complete, read slowly", "left", "status 400", "status 413", "status 429"}
    assert set(load.counts) <= known, load.counts
    assert load.counts["complete"] > 2
    assert load.counts["left"] > 0
    assert load.held <= 8
    ask, text = load.complete[0]
    load.complete.append((ask, f"{text}x"))
    load.begun.append((ask, f"x{text}"))
    wrong = compare(load, tiny.models, tiny.tokenizer, 24)
    assert [(a, t) for a, t, _ in wrong] == [(ask, f"{text}x"), (ask, f"x{text}")]
