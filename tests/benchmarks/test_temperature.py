"""The benchmark of sampled text: its table, and a short run."""

import json

import pytest

from benchmarks import temperature
from benchmarks.runner import Base


def row(task, way, call_reduction, same=4):
    return {
        "temp": 1.0, "mode": "shared", "task": task, "way": way, "items": 4, "same": same,
        "call_reduction": call_reduction, "nodes": 2.0, "speedup": 1.5,
    }  # fmt: skip


def test_the_table_begins_with_means_over_tasks():
    rows = [row("sql", "keyed", 3.0), row("describe", "keyed", 2.0, same=3)]
    rows.append(row("sql", "rejection", 2.5, same=None))
    facts = {"machine": "m", "cpu": "c", "mlx": "1", "backend": "cpu", "blas": "b"}
    lines = temperature.markdown(rows, facts | {"texts": "typed texts", "items": 4, "top_k": 0})
    assert "| 1 | shared | mean | keyed | 2.50 | 2.0 | 1.50x | 7 of 8 |" in lines[4]
    assert "| 1 | shared | mean | rejection | 2.50 | 2.0 | 1.50x | - |" in lines[5]
    assert len(lines) == 4 + 2 + 3


@pytest.mark.slow
def test_a_short_run(tmp_path, monkeypatch, toy):
    """All ways of ``keyed`` write one text; conditioned heads leave ``rejection`` out."""
    monkeypatch.setattr(temperature, "Base", lambda *given: Base(*given, fastest_baseline=False))
    temperature.main(temp=[1.0], top_k=20, only="sql", items=1, max_tokens=6, output=tmp_path)
    (file,) = tmp_path.glob("temperature-top-20-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert [row["way"] for row in rows] == 2 * [way for way in temperature.WAYS if "keyed" in way]
    assert all(row["same"] == 1 for row in rows)
