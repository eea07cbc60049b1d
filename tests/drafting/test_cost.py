"""The cost curve: points, what lies between them, and how steps of a text become points."""

import json

import pytest

from specstream_mlx.drafting import cost
from specstream_mlx.drafting.cost import MOST_NODES, CostCurve, StepCosts

LOSSLESS = ("plain", "none", "beside 1")
SHARED = ("none", "beside")
SECONDS = {"plain": 1.0, "none": 1.2, "beside 1": 1.9, "beside": 1.3}


def true_seconds(place, nodes):
    return 0.001 * (SECONDS[place] + 0.1 * (nodes - 1))


def measured(costs, factor=lambda number: 1.0, limit=1000):
    """Hand every wanted step its time; returns the steps."""
    steps = []
    while (job := costs.wanted()) and len(steps) < limit:
        steps.append(job)
        costs.note(true_seconds(*job) * factor(len(steps)))
    return steps


@pytest.fixture
def path(tmp_path):
    return tmp_path / "costs" / "model.json"


def test_a_curve_is_interpolated_and_relative_to_a_plain_step():
    curve = CostCurve({"plain": ((1, 2.0),), "none": ((2, 3.0), (4, 4.0), (8, 5.0))}, spread=0.01)
    found = [curve.seconds("none", nodes) for nodes in (1, 2, 3, 4, 6, 8, 16)]
    assert found == pytest.approx([3.0, 3.0, 3.5, 4.0, 4.5, 5.0, 10.0])
    assert curve.plain == 2.0
    assert curve.relative("none")[4] == 2.0


def test_more_nodes_never_cost_less(path):
    """Neighbours that do are replaced by their mean."""
    dips = {("none", 1): 1.0, ("none", 2): 3.0, ("none", 4): 2.0, ("none", 8): 4.0}
    costs = StepCosts(path, {}, SHARED)
    while job := costs.wanted():
        costs.note(0.001 * dips.get(job, 5.0))
    found = [1000 * costs.curve.seconds("none", nodes) for nodes in (1, 2, 4, 8)]
    assert found == pytest.approx([1.0, 2.5, 2.5, 4.0])


@pytest.mark.parametrize("places", [LOSSLESS, SHARED, ("plain", "none")])
def test_every_place_is_measured_at_every_size(places, path):
    costs = StepCosts(path, {}, places)
    assert costs.curve.spread is None and not costs.complete
    steps = measured(costs)
    assert costs.complete and costs.wanted() is None
    jobs = set(steps)
    assert len(steps) == cost._ROUNDS * len(jobs)
    assert (("none", 1) in jobs) == ("plain" not in places), "that is a plain step"
    for place, nodes in jobs:
        assert costs.curve.seconds(place, nodes) == pytest.approx(true_seconds(place, nodes))
    assert max(nodes for _, nodes in jobs) == MOST_NODES
    assert not costs.curve.busy


def test_a_machine_whose_speed_changes_from_round_to_round_shows_the_same_curve(path):
    costs = StepCosts(path, {}, LOSSLESS)
    rounds = len(costs._jobs)
    measured(costs, lambda number: 1 + (number - 1) // rounds)
    steady = StepCosts(path.with_name("steady"), {}, LOSSLESS)
    measured(steady)
    for place in LOSSLESS:
        assert costs.curve.relative(place) == pytest.approx(steady.curve.relative(place))
    assert not costs.curve.busy


def test_slow_steps_are_timed_for_three_seconds_at_most(path):
    costs = StepCosts(path, {}, LOSSLESS)
    steps = measured(costs, lambda number: 100)
    assert len(steps) == costs.curve.rounds * len(set(steps))
    spent = sum(100 * true_seconds(*job) for job in steps)
    assert costs.curve.rounds == 1 or spent < 3


def test_timings_are_kept_from_one_run_to_the_next(path):
    """A run of a few tokens is enough for a few timings."""
    runs = 0
    while not (costs := StepCosts(path, {"base": 1}, SHARED)).complete:
        measured(costs, limit=7)
        costs.save()
        runs += 1
    assert runs == -(-cost._ROUNDS * 2 * len(cost._SIZES) // 7)
    assert costs.curve.seconds("beside", 8) == pytest.approx(true_seconds("beside", 8))
    assert StepCosts(path, {"base": 2}, SHARED).curve.spread is None, "another model's"


def no_time(path):
    values = json.loads(path.read_text())
    values["curve"]["points"]["beside"][0][1] = 0
    return json.dumps(values)


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"facts": {}}', '{"facts": {}, "timings": [1]}', no_time]
)
def test_a_damaged_file_counts_as_none(path, damage):
    costs = StepCosts(path, {}, SHARED)
    measured(costs)
    costs.save()
    path.write_text(damage if isinstance(damage, str) else damage(path))
    costs = StepCosts(path, {}, SHARED)
    assert costs.curve.spread is None
    measured(costs)
    costs.save()
    assert StepCosts(path, {}, SHARED).complete


def busy(number):
    return (1.0, 1.6, 0.9, 1.4, 0.7)[number * 7 % 11 % 5]


def test_a_busy_machine_is_measured_again_after_a_while(path, monkeypatch):
    costs = StepCosts(path, {}, SHARED)
    measured(costs, busy)
    assert costs.curve.busy and costs.complete
    assert "busy" in costs.curve.state()
    typical = cost._TYPICAL["beside"][1] / cost._TYPICAL["none"][0]
    assert min(costs.curve.relative("beside")[2:]) >= typical, "not believed"
    costs.refresh()
    assert costs.wanted() is None
    monkeypatch.setattr(cost, "_AGAIN_AFTER", -1.0)
    costs.refresh()
    first = costs.curve
    measured(costs, limit=7)
    costs.save()
    costs = StepCosts(path, {}, SHARED)
    assert costs.curve == first, "in use until there is a better one"
    measured(costs)
    assert not costs.curve.busy
    assert "quiet" in costs.curve.state()
    costs.refresh()
    assert costs.wanted() is None
