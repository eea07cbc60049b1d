"""``doctor`` lists the cost curves that are kept for this machine."""

import json
import time
from datetime import datetime
from types import SimpleNamespace

import pytest
from command_line import run
from random_models import random_prompt

from specstream_mlx import generate, load
from specstream_mlx.drafting import cost, rule
from specstream_mlx.drafting.cost import CostCurve
from specstream_mlx.hardware import user_cache

POINTS = {"none": [[1, 0.02], [2, 0.03]], "beside": [[1, 0.03], [2, 0.03]]}


@pytest.fixture
def curves(tmp_path, monkeypatch):
    """A cache directory; what is called writes a curve into it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def write(name, model, spread, measured, points=POINTS, **changed):
        facts = {"streams": {"mode": "shared"}, "kv_cache": None, "processes": 1}
        facts |= {"device": cost.device_facts()} | changed
        curve = {"points": points, "spread": spread, "rounds": 6, "measured": measured}
        names = {"model": model, "adapter": "/adapters/sql"}
        values = {"facts": facts, "names": names, "timings": [], "curve": curve}
        user_cache.write(cost.directory() / f"{name}.json", values)

    return write


def test_curves_of_this_machine(curves, base, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert "not measured yet" in run("doctor", "--model", base).stdout
    now = time.time()
    curves("a", "/models/llama", 0.04, now - 60)
    divided = {"kv_cache": [8, 64, 0], "processes": 2}
    curves("b", "/hub/models--org--phi/snapshots/0f", 0.3, now, **divided)
    curves("d", "/models/other", 0.04, now, device={"cpu": "another"})
    user_cache.write(cost.directory() / "e.json", {"facts": {}, "curve": {"points": 3}})
    curves("f", "/models/unfinished", 0.04, now, points={"beside": [[1, 0.02], [2, 0.03]]})
    facts = json.loads(run("doctor", "--json", "--model", base).stdout)
    rows = facts["measured"]
    assert [row["model"] for row in rows] == ["org/phi", "/models/llama"]
    assert [row["busy"] for row in rows] == [True, False]
    assert rows[1]["plain_seconds"] == 0.02 and rows[1]["adapter"] == "sql"
    assert facts["measured_elsewhere"] == 1
    shown = " ".join(run("doctor", "--model", base).stdout.split())
    when = datetime.fromtimestamp(now - 60).strftime("%Y-%m-%d %H:%M")
    assert f"/models/llama sql (shared) 20.0 ms {when} quiet (spread 4%)" in shown
    assert "busy (spread 30%)" in shown and "KV cache of 8 bits, 2 processes" in shown
    assert "1 more were measured on another machine, MLX or BLAS." in shown


def test_a_curve_that_generate_measured_has_its_model(curves, base, streams):
    model, tokenizer = load(base, adapter_path=streams)
    for seed in range(40):
        if rule.history_of(model).costs.complete:
            break
        generate(model, tokenizer, random_prompt(8, seed=seed), max_tokens=60)
    (row,) = json.loads(run("doctor", "--json", "--model", base).stdout)["measured"]
    assert (row["model"], row["adapter"], row["mode"]) == (str(base), streams.name, "lossless")


def test_what_steps_of_the_model_take(curves, base, monkeypatch):
    points = {"plain": ((1, 0.02),), "none": ((1, 0.024), (4, 0.03))}
    costs = SimpleNamespace(curve=CostCurve(points, 0.04, 6, time.time()))
    monkeypatch.setattr(rule, "history_of", lambda _: SimpleNamespace(costs=costs))
    facts = json.loads(run("doctor", "--json", "--model", base).stdout)
    assert facts["step_seconds"]["none"] == [[1, 0.024], [4, 0.03]]
    shown = [line.split() for line in run("doctor", "--model", base).stdout.splitlines()]
    at = shown.index(["nodes", "plain", "step", "lookup", "alone"])
    assert ["1", "20.0", "(1.00x)", "24.0", "(1.20x)"] in shown[at:]
    assert ["4", "30.0", "(1.50x)"] in shown[at:]
