"""The report of the CUDA backend, in a dry run on the CPU."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks import cuda
from specstream_mlx.hardware import device
from specstream_mlx.terminal.commands import program

TESTS = """
import warnings

def test_right():
    pass

def test_near():
    warnings.warn("token 3 is 4, expected 5; the top two logits are 1.0 and 1.0, a gap of 0")

def test_wrong():
    assert 1 == 2, "one is not two"
"""


def command(*flags):
    return CliRunner().invoke(program(cuda.main), [*map(str, flags)])


def test_a_dry_run_lists_what_failed_and_times_steps(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    tests = f"{tmp_path / 'test_some.py'} --rootdir {tmp_path}"
    flags = ("--device", "cpu", "--models", "2x64", "--steps", 2, "--output", tmp_path)
    result = command(*flags, "--tests", tests)
    assert result.exit_code == 0, result.output
    values = json.loads((tmp_path / "cuda-dry-run.json").read_text())
    assert values["suite"]["counts"] == {"passed": 2, "failed": 1}
    [[failed, said]] = values["suite"]["failures"]
    assert failed.endswith("test_wrong") and "one is not two" in said
    assert len(values["suite"]["near_ties"]) == 1
    rows = values["rows"]
    assert [row["method"] for row in rows][:2] == [cuda.MLX_LM, "one token a step"]
    assert rows[-1]["method"] == "shared, tree, pruned"
    for row in rows:
        assert 0 <= row["waiting"] < row["step"]
        assert 0 < row["first"] <= row["last"] <= row["step"]
    text = (tmp_path / "cuda-dry-run.md").read_text()
    assert "a dry run on a CPU" in text and "2 passed; 1 near-ties" in text


def test_a_page_says_that_it_is_not_metal():
    facts = {"machine": "m", "cpu": "c", "mlx": "1", "backend": "cuda", "blas": "b"}
    tested = {"counts": {"passed": 1}, "failures": [], "near_ties": []}
    steps = {"step": 2.0, "waiting": 1.0, "first": 0.1, "last": 0.4}
    failed = {"model": "x", "method": "tree: no kernel", **dict.fromkeys(steps)}
    rows = [{"model": "x", "method": cuda.MLX_LM, **steps}, failed]
    lines = cuda.markdown(tested, rows, {**facts, "gpu": "GPU: g", "commit": "d"})
    assert "CUDA and not Metal" in lines[0]
    assert lines[-1] == "| x | tree: no kernel | - | - | - | - | - |"


@pytest.mark.skipif(device.backend() == "cuda", reason="there is one")
def test_without_such_a_gpu_it_says_so(tmp_path, capsys):
    assert command("--output", tmp_path).exit_code == 2
    assert not list(tmp_path.iterdir())
    assert command("--device", "cpu", "--models", "big", "--output", tmp_path).exit_code == 2
