"""Seconds of a step by its nodes and by where the streams run: timed, and interpolated."""

import numpy as np
import pytest

from specstream_mlx import load
from specstream_mlx.autotune import cost
from specstream_mlx.autotune.cost import StepCosts, _ascending, _tree, measure_step_costs, place_of
from specstream_mlx.autotune.drift import without_drift


def test_costs_are_interpolated_and_ascend():
    table = StepCosts(1.0, {"none": ((1, 1.0), (4, 2.5), (8, 3.0))})
    found = [table.seconds(nodes, "none") for nodes in (1, 2, 4, 6, 8, 16)]
    assert found == pytest.approx([1.0, 1.5, 2.5, 2.75, 3.0, 6.0])
    assert (table.most_nodes("none"), table.most_nodes("beside")) == (8, 0)
    points = _ascending([(1, 2.0), (2, 1.0), (3, 3.0), (4, 2.0), (5, 2.8)])
    assert points == ((1, 1.5), (2, 1.5), (3, 2.5), (4, 2.5), (5, 2.8))


@pytest.mark.parametrize("nodes", [1, 4, 24])
def test_timed_trees_are_trees(nodes):
    tree = _tree(nodes)
    assert len(tree) == nodes
    assert (np.diff(tree.depths) >= 0).all()
    for node in range(1, nodes):
        assert tree.depths[node] == tree.depths[tree.parents[node]] + 1


@pytest.mark.parametrize("kind", ["streams", "shared", None])
def test_every_placement_is_timed(kind, base, request):
    model, _ = load(base, adapter_path=kind and request.getfixturevalue(kind))
    found = measure_step_costs(model, seconds=0.2)
    lossless = {"none", "deferred", "beside", "beside 1", "beside 2"}
    expected = {"shared": {"beside"}, "streams": lossless, None: {"none"}}
    assert set(found.table) == expected[kind]
    assert found.plain > 0
    for points in found.table.values():
        seconds = [value for _, value in points]
        assert seconds == sorted(seconds) and points[0][0] == 1


def test_later_rounds_are_of_promising_places_alone(base, streams, monkeypatch):
    """The others stay in the table."""
    model, _ = load(base, adapter_path=streams)
    first, timed = [], []
    usual = cost._Bench.step

    def counting(bench, tree, settings):
        timed.append(place_of(settings, model.streams.config))
        return usual(bench, tree, settings)

    def promising(found):
        first.append(dict(found.table))
        timed.clear()
        return {"none", "beside 1"}

    monkeypatch.setattr(cost._Bench, "step", counting)
    monkeypatch.setattr(cost, "_ROUNDS", 5)
    found = measure_step_costs(model, seconds=60, promising=promising)
    assert set(timed) == {"none", "beside 1"}
    assert set(found.table) == set(first[0]) > {"none", "beside 1"}


def test_every_round_of_timings_has_its_own_order(base, streams, monkeypatch):
    """Else what comes in step with the rounds is no drift; the table keeps its order."""
    seen = []

    def steady(timings):
        seen.append([job for job, _ in timings])
        return without_drift(timings)

    model, _ = load(base, adapter_path=streams)
    monkeypatch.setattr(cost, "without_drift", steady)
    monkeypatch.setattr(cost, "_ROUNDS", 2)
    found = measure_step_costs(model, seconds=60)
    count = len(seen[0]) // 2
    first, second = seen[0][:count], seen[0][count:]
    assert set(first) == set(second) and first != second
    assert list(found.table) == ["none", "deferred", "beside", "beside 1", "beside 2"]
