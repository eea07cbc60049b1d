"""What steps cost: how steps of a text become a curve, and what passes of several say."""

import json
import random

import pytest

from specstream_mlx.drafting import cost
from specstream_mlx.drafting.cost import MOST_NODES, MOST_ROWS, BatchCosts, CostCurve, StepCosts

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


def test_a_machine_whose_speed_changes_or_is_low(path):
    """From round to round it shows the same curve; slow steps are timed for 3 seconds at most."""
    costs, steady, slow = (StepCosts(path.with_name(name), {}, LOSSLESS) for name in "abc")
    rounds = len(costs._jobs)
    measured(costs, lambda number: 1 + (number - 1) // rounds)
    measured(steady)
    for place in LOSSLESS:
        assert costs.curve.relative(place) == pytest.approx(steady.curve.relative(place))
    assert not costs.curve.busy
    steps = measured(slow, lambda number: 100)
    assert len(steps) == slow.curve.rounds * len(set(steps))
    assert slow.curve.rounds == 1 or sum(100 * true_seconds(*job) for job in steps) < 3


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


# Passes of several texts -----------------------------------------------------------------

SOLO = (1.0, 0.02), (1.2, 0.02)
GAINS = [0.7 * 0.75**place for place in range(15)]


def seconds(shared, row, rows):
    return shared + row * rows


def write(costs, texts, shared, row, passes=200, busy=0.0, seed=0):
    """Let texts be decoded whose drafts are right as often as they seem; return the shares."""
    rng, found = random.Random(seed), []
    for _ in range(passes):
        for _ in range(texts):
            costs.note_gains(texts, GAINS)
            share = costs.share(texts, SOLO)
        found.append(share)
        tokens = sum(
            1 + sum(rng.random() < g for g in GAINS[: share.nodes - 1]) for _ in range(texts)
        )
        took = seconds(shared, row, texts * share.nodes) * rng.uniform(0.97, 1.03)
        if rng.random() < busy:
            took *= 5
        costs.note(texts, texts * share.nodes, True, tokens, took)
    return found


def best_nodes(texts, shared, row):
    """The nodes with the most tokens per second, by trying all."""
    return max(
        range(1, MOST_NODES + 1),
        key=lambda n: (1 + sum(GAINS[: n - 1])) / seconds(shared, row, texts * n),
    )


@pytest.mark.parametrize("texts", [2, 8])
@pytest.mark.parametrize(("shared", "row"), [(0.05, 0.0004), (0.05, 0.002), (0.05, 0.03)])
@pytest.mark.parametrize("busy", [0.0, 0.1])
def test_as_much_is_drafted_as_brings_the_most_tokens_a_second(texts, shared, row, busy):
    costs = BatchCosts()
    last = write(costs, texts, shared, row, busy=busy)[-100:]
    best = best_nodes(texts, shared, row)

    def rate(nodes):
        return (1 + sum(GAINS[: nodes - 1])) / seconds(shared, row, texts * nodes)

    usual = sum(rate(share.nodes) for share in last) / len(last)
    assert usual > (0.8 if busy else 0.97) * rate(best)


def test_what_a_text_counts_on():
    costs = BatchCosts()
    before = costs.share(4, SOLO)
    assert before.nodes == 1  # how likely drafts are is not known yet
    assert before.seconds == pytest.approx([(1 + 0.02 * 4) / 4, (1.2 + 0.02 * 4) / 4])
    assert before.rate == pytest.approx(4 / (1 + 0.02 * 4))
    for rows in (4, 8, 16, 4, 8, 16):
        costs.note(4, rows, True, 4, 0.2 + 0.01 * rows)
    share = costs.share(4, SOLO)
    assert share.seconds[1] * 4 == pytest.approx(0.2 + 0.01 * 4, rel=0.02)
    ratio = (1 + 0.02 * 4) / (1.2 + 0.02 * 4)
    assert share.seconds[0] == pytest.approx(share.seconds[1] * ratio)
    costs.note(4, 4, True, 4, None)  # disturbed: no time
    assert costs.share(4, SOLO).seconds == share.seconds
    own = share.costs(True)
    assert len(own) == MOST_ROWS + 1
    assert own[: share.nodes + 1] == [share.seconds[1]] * (share.nodes + 1)
    further = own[share.nodes + 1] - own[share.nodes]
    assert further == pytest.approx(4 * 0.01, rel=0.06)  # a row for each text
    assert own[-1] == pytest.approx(own[share.nodes] + further * (MOST_ROWS - share.nodes))
    assert costs.share(5, SOLO).seconds != share.seconds  # each number of texts by itself
