"""Graphs that are never evaluated are those of steps that are."""

from collections import Counter

import mlx.core as mx
import pytest

from benchmarks import step_graphs
from benchmarks.runner import CHAIN, MLX_LM, ONE_TOKEN
from benchmarks.step_graphs import as_on_a_gpu, model_of, operations, rows_of_model, step_graph
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request

LAYERS = 6


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(step_graphs.SHAPES, "small", (LAYERS, 128, 2, 1, 256, 5000))


def test_what_a_step_asks_for():
    """Ours needs few operations more in a plain step."""
    rows = rows_of_model("small", timed=1)
    counts = {row["method"]: row["operations"] for row in rows}
    assert counts[MLX_LM]["QuantizedMatmul"] == 7 * LAYERS + 1
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
    assert step_graph(model, settings).operations == dict(handed)
