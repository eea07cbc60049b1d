"""Benchmarks of the demonstration model, each for one short text on the toy."""

import json
from functools import partial

import pytest
from command_line import run_program

from benchmarks import (
    answers,
    cuda,
    paper_figures,
    runner,
    step_cost,
    temperature,
    texts,
)

SHORT = "--items 1 --max-tokens 12 "
RUNS = {
    "answers": (answers, SHORT + "--texts dev --timed 1 --rounds 1 --tasks sql,prose"),
    "full trees": (paper_figures, SHORT + "--max-nodes 4"),
    "temperature": (temperature, SHORT + "--temp 1.0 --top-k 20 --tasks sql"),
    "step cost": (step_cost, "--items 1 --steps 4 --random-llama 2x64"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", RUNS)
def test_a_short_run_has_rows_of_both(name, tmp_path, monkeypatch):
    module, options = RUNS[name]
    monkeypatch.setattr(texts, "PROSE_ADAPTER", "sql")  # the toy has no other
    monkeypatch.setattr(step_cost, "PLAIN_TOKENS", 4)
    if name in ("full trees", "temperature"):
        monkeypatch.setattr(module, "Base", partial(runner.Base, fastest_baseline=False))
        monkeypatch.setattr(paper_figures, "GAMMAS", (2,))
    run_program(module.main, *options.split(), "--output", tmp_path)
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    if name == "step cost":
        assert {row["method"].split(",")[0] for row in rows} >= {"lossless", "shared"}
    else:
        assert {row["writer"] for row in rows} == {"base", "adapters"}
    assert all(row.get("same_output_as_plain", row.get("same", 1)) == 1 for row in rows)
    assert path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_a_dry_run_of_cuda_counts_tests_and_times_steps(tmp_path):
    tests = tmp_path / "test_some.py"
    tests.write_text("def test_right():\n    pass\n\n\ndef test_wrong():\n    assert 1 == 2\n")
    flags = ("--device", "cpu", "--models", "2x64", "--steps", 2, "--output", tmp_path)
    run_program(cuda.main, *flags, "--tests", f"{tests} --rootdir {tmp_path}")
    values = json.loads((tmp_path / "cuda-dry-run.json").read_text())
    assert values["suite"]["counts"] == {"passed": 1, "failed": 1}
    assert values["rows"] and all(0 < row["first"] <= row["step"] for row in values["rows"])
