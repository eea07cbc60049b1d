"""``doctor`` says what steps of a model take on this machine."""

import json
import time
from types import SimpleNamespace

from command_line import run

from specstream_mlx.drafting import rule
from specstream_mlx.drafting.cost import CostCurve


def test_what_steps_of_the_model_take(base, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "not measured yet" in run("doctor", "--model", base).stdout
    points = {"plain": ((1, 0.02),), "none": ((1, 0.024), (4, 0.03))}
    costs = SimpleNamespace(curve=CostCurve(points, 0.04, time.time()))
    monkeypatch.setattr(rule, "history_of", lambda _: SimpleNamespace(costs=costs))
    facts = json.loads(run("doctor", "--json", "--model", base).stdout)
    assert facts["step_seconds"]["none"] == [[1, 0.024], [4, 0.03]]
    text = run("doctor", "--model", base).stdout
    assert "machine quiet (spread 4%)" in text
    shown = [line.split() for line in text.splitlines()]
    at = shown.index(["nodes", "plain", "step", "lookup", "alone"])
    assert ["1", "20.0", "(1.00x)", "24.0", "(1.20x)"] in shown[at:]
    assert ["4", "30.0", "(1.50x)"] in shown[at:]
