"""The benchmark of a step's cost: what it divides by, and a short run on a random Llama."""

import json

import pytest
from command_line import run_program

from benchmarks import step_cost
from benchmarks.bare_forwards import BareForwards
from benchmarks.random_llama import random_llama, with_streams
from benchmarks.step_rows import StepRows


def test_bare_forwards_leave_the_caches_as_they_were():
    model = dict(with_streams(*random_llama(4, 64, 50)))["untrained, lossless"]
    bare = BareForwards(model.model, 3, [1, 2, 3])
    for _ in range(2):
        assert bare.seconds(StepRows(7, 35, (7, 4), 4)) > 0
        assert bare.products(StepRows(7, 35, (7, 4), 4)) > 0
        assert [cache.offset for cache in bare.caches] == [3] * 4


@pytest.mark.usefixtures("toy")
def test_a_short_run(tmp_path, monkeypatch):
    monkeypatch.setattr(step_cost, "PLAIN_TOKENS", 4)
    flags = "--random-llama 2x64 --items 1 --steps 4 --output".split()
    run_program(step_cost.main, *flags, tmp_path)
    (path,) = tmp_path.glob("step-cost-random-2x64-*.json")
    result = json.loads(path.read_text())
    assert [row["method"] for row in result["rows"][-3:]] == [
        "shared, chain",
        "shared, tree",
        "shared, tree, pruned",
    ]
    for row in result["rows"]:
        assert row["step"] > 0
        assert row["overhead"] == pytest.approx(1 - 1 / row["ratio"], rel=1e-2, abs=2e-3)
    assert result["plain_decoding"]["rate_ratio"] > 0
    assert "Plain decoding" in path.with_suffix(".md").read_text()
