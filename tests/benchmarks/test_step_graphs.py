"""Graphs that are never evaluated: they are those of steps that are, and take no memory."""

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
    """Counted by hand for each layer, behind which ours needs few operations in a plain step."""
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    rows = rows_of_model("small", timed=1)
    assert mx.get_peak_memory() - before < 1e6  # bytes, of a model of several
    by_method = {row["method"]: row for row in rows}
    for name in (MLX_LM, "one token a step"):
        counts = by_method[name]["operations"]
        assert counts["QuantizedMatmul"] == 7 * LAYERS + 1
        assert counts["rope"] == counts["SliceUpdate"] == 2 * LAYERS
        assert counts["scaled_dot_product_attention"] == LAYERS
        assert counts["rms_norm"] == 2 * LAYERS + 1
        assert counts["dequantize"] == 1 and counts["fused"] == LAYERS
    totals = {name: sum(row["operations"].values()) for name, row in by_method.items()}
    assert abs(totals["one token a step"] - totals[MLX_LM]) <= 5
    beside = by_method["lossless, chain"]
    assert beside["operations"]["scaled_dot_product_attention"] == LAYERS
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
    found = step_graph(model, settings).operations
    assert found == dict(handed)
    assert "Depends" not in found
