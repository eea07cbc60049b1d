"""The benchmark of sampled text: its table, and a short run."""

import json

import pytest
from command_line import run_program

from benchmarks import temperature
from benchmarks.runner import Base


@pytest.mark.slow
def test_a_short_run(tmp_path, monkeypatch, toy):
    """All ways of ``keyed`` write one text; conditioned heads leave ``rejection`` out."""
    monkeypatch.setattr(temperature, "Base", lambda *given: Base(*given, fastest_baseline=False))
    flags = "--temp 1.0 --top-k 20 --tasks sql --items 1 --max-tokens 6 --output".split()
    run_program(temperature.main, *flags, tmp_path)
    (file,) = tmp_path.glob("temperature-top-20-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert [row["way"] for row in rows] == 2 * [way for way in temperature.WAYS if "keyed" in way]
    assert all(row["same"] == 1 for row in rows)
