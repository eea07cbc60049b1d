"""Graphs that are never evaluated are those of steps that are."""

from collections import Counter

import mlx.core as mx
import pytest

from benchmarks import step_graphs
from benchmarks.runner import CHAIN, MLX_LM, ONE_TOKEN
from benchmarks.step_graphs import (
    as_on_a_gpu,
    model_of,
    operations,
    rows_of_model,
    step_graph,
)
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode

LAYERS = 6


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(step_graphs.SHAPES, "small", (LAYERS, 128, 2, 1, 256, 5000))


def test_what_a_step_asks_for():
    """Counted by hand for each layer; ours needs few operations more in a plain step."""
    rows = rows_of_model("small", timed=1)
    counts = {row["method"]: row["operations"] for row in rows}
    for name in (MLX_LM, "one token a step"):
        assert counts[name]["QuantizedMatmul"] == 7 * LAYERS + 1
        assert counts[name]["rope"] == counts[name]["SliceUpdate"] == 2 * LAYERS
        assert counts[name]["scaled_dot_product_attention"] == LAYERS
    assert sum(counts["one token a step"].values()) - sum(counts[MLX_LM].values()) <= 5
    assert all(0 < row["first_ms"] <= row["last_ms"] <= row["all_ms"] for row in rows)


@pytest.mark.parametrize("settings", [ONE_TOKEN, CHAIN], ids=["plain", "chain"])
def test_the_graph_is_that_of_a_step_that_is_computed(settings):
    """The real loop hands over as many operations of each kind, with weights that are there."""
    model = model_of("small", "lossless")
    handed = Counter()

    def compute(*arrays):
        handed.update(operations(arrays))  # those that no earlier part of the step has computed
        mx.eval(*arrays)

    with as_on_a_gpu(compute):
        run = decode(model, Request([0, 1], settings))
        for _ in range(4):
            next(run)
        handed.clear()
        next(run)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    found = step_graph(model, settings).operations
    assert mx.get_peak_memory() - before < 1e6  # bytes, of a model of several
    assert found == dict(handed)
    assert "Depends" not in found
