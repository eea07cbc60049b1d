"""What steps cost: how steps of a text become a curve, and what passes of several say."""

import json
import random

import pytest

from specstream_mlx.drafting import step_costs
from specstream_mlx.drafting.step_costs import MOST_NODES, BatchCosts, CostCurve, StepCosts

SHARED = "none", "nodes"


def true_seconds(place, nodes):
    return 0.001 * ({"none": 1.2, "nodes": 1.3}[place] + 0.1 * (nodes - 1))


def measured(costs, factor=lambda number: 1.0, limit=1000):
    """Hand every wanted step its time; returns the steps."""
    steps = []
    while (kind := costs.wanted()) and len(steps) < limit:
        steps.append(kind)
        costs.note(true_seconds(*kind) * factor(len(steps)))
    return steps


@pytest.fixture
def path(tmp_path):
    return tmp_path / "costs" / "model.json"


def test_a_curve_is_interpolated_and_more_nodes_never_cost_less(path):
    """Those that seem to were held up."""
    curve = CostCurve({"plain": ((1, 2.0),), "none": ((2, 3.0), (4, 4.0), (8, 5.0))}, spread=0.01)
    found = [curve.seconds("none", nodes) for nodes in (1, 2, 3, 4, 6, 8, 16)]
    assert found == pytest.approx([3.0, 3.0, 3.5, 4.0, 4.5, 5.0, 10.0])
    assert curve.relative("none")[4] == 2.0
    dips = {("none", 1): 1.0, ("none", 2): 3.0, ("none", 4): 2.0, ("none", 8): 4.0}
    costs = StepCosts(path, {}, SHARED)
    while kind := costs.wanted():
        costs.note(0.001 * dips.get(kind, 5.0))
    found = [1000 * costs.curve.seconds("none", nodes) for nodes in (1, 2, 4, 8)]
    assert found == pytest.approx([1.0, 2.0, 2.0, 4.0])


def test_timings_are_kept_from_one_run_to_the_next_unless_the_file_is_damaged(path):
    """A run of a few tokens is enough for a few timings."""
    while (costs := StepCosts(path, {"base": 1}, SHARED)).wanted():
        assert measured(costs, limit=7)
        costs.save()
    for nodes in (1, 8, MOST_NODES):
        assert costs.curve.seconds("nodes", nodes) == pytest.approx(true_seconds("nodes", nodes))
    assert StepCosts(path, {"base": 2}, SHARED).curve.spread is None, "another model's"
    no_time = json.loads(path.read_text())
    no_time["curve"]["points"]["nodes"][0][1] = 0
    for damage in "[]", '{"facts": {"base": 1}, "timings": [1]}', json.dumps(no_time):
        path.write_text(damage)
        assert StepCosts(path, {"base": 1}, SHARED).curve.spread is None


def test_a_busy_machine_is_measured_again_after_a_while(path, monkeypatch):
    costs = StepCosts(path, {}, SHARED)
    measured(costs, lambda number: (1.0, 1.6, 0.9, 1.4, 0.7)[number * 7 % 11 % 5])
    assert costs.curve.busy and costs.wanted() is None
    assert "busy" in costs.curve.state()
    typical = step_costs._TYPICAL["nodes"][1] / step_costs._TYPICAL["none"][0]
    assert min(costs.curve.relative("nodes")[2:]) >= typical, "not believed"
    costs.refresh()
    assert costs.wanted() is None
    monkeypatch.setattr(step_costs, "_AGAIN_AFTER", -1.0)
    costs.refresh()
    measured(costs)
    assert "quiet" in costs.curve.state()
    costs.refresh()
    assert costs.wanted() is None


# Passes of several texts -----------------------------------------------------------------

SOLO = (1.0, 0.02), (1.2, 0.02)
GAINS = [0.7 * 0.75**place for place in range(15)]


@pytest.mark.parametrize("texts", [2, 8])
@pytest.mark.parametrize("row", [0.0004, 0.002, 0.03])
@pytest.mark.parametrize("busy", [0.0, 0.1])
def test_as_much_is_drafted_as_brings_the_most_tokens_a_second(texts, row, busy):
    """The best number of nodes is found by trying all."""
    shared = 0.05

    def rate(nodes):
        return (1 + sum(GAINS[: nodes - 1])) / (shared + row * texts * nodes)

    costs, rng, found = BatchCosts(), random.Random(0), []
    for _ in range(200):  # passes, whose drafts are right as often as they seem
        for _ in range(texts):
            costs.note_gains(texts, GAINS)
            share = costs.share(texts, SOLO)
        found.append(rate(share.nodes))
        drafted = GAINS[: share.nodes - 1] * texts
        tokens = texts + sum(rng.random() < gain for gain in drafted)
        took = (shared + row * texts * share.nodes) * rng.uniform(0.97, 1.03)
        took *= 5 if rng.random() < busy else 1
        costs.note(texts, texts * share.nodes, True, tokens, took)
    best = max(map(rate, range(1, MOST_NODES + 1)))
    assert sum(found[-100:]) / 100 > (0.8 if busy else 0.97) * best
