"""What steps cost: how steps of a text become a curve, and what passes of several say."""

import json
from dataclasses import replace

import pytest
from random_models import speculative_model

from specstream_mlx.drafting import step_costs, typical_costs
from specstream_mlx.drafting.rule import RulePlanner, new_history, places_of
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.drafting.step_costs import MOST_NODES, CostCurve, StepCosts
from specstream_mlx.drafting.typical_costs import on_gpu, predicted
from specstream_mlx.engine.draft_head import HeadConfig
from specstream_mlx.engine.guess import NO_GUESSES
from specstream_mlx.hardware import device
from specstream_mlx.hardware.apple_chips import chip
from specstream_mlx.hardware.metal_cost import Shape

SHARED = "none", "nodes"


def true_seconds(place, nodes):
    return 0.001 * ({"none": 1.2, "nodes": 1.3}[place] + 0.1 * (nodes - 1))


def measured(costs, factor=lambda number: 1.0, limit=1000):
    """Hand every wanted step its time; returns the steps."""
    steps, timings = [], costs.behind(0)
    while (kind := timings.wanted()) and len(steps) < limit:
        steps.append(kind)
        timings.note(true_seconds(*kind) * factor(len(steps)))
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
    timings = StepCosts(path, {}, SHARED).behind(0)
    while kind := timings.wanted():
        timings.note(0.001 * dips.get(kind, 5.0))
    found = [1000 * timings.curve.seconds("none", nodes) for nodes in (1, 2, 4, 8)]
    assert found == pytest.approx([1.0, 2.0, 2.0, 4.0])


def test_timings_are_kept_from_one_run_to_the_next_unless_the_file_is_damaged(path):
    """A run of a few tokens is enough for a few timings."""
    while (costs := StepCosts(path, {"base": 1}, SHARED)).behind(0).wanted():
        assert measured(costs, limit=7)
        costs.save()
    for nodes in (1, 8, MOST_NODES):
        assert costs.behind(0).curve.seconds("nodes", nodes) == pytest.approx(
            true_seconds("nodes", nodes)
        )
    other = StepCosts(path, {"base": 2}, SHARED)
    assert other.behind(0).curve.spread is None, "another model's"
    no_time = json.loads(path.read_text())
    no_time["lengths"][0]["curve"]["points"]["nodes"][0][1] = 0
    damages = "[]", *(f'{{"facts": {{"base": 1}}, "lengths": {x}}}' for x in ("3", "[1]", "[[1]]"))
    for damage in *damages, '{"facts": {"base": 1}}', json.dumps(no_time):
        path.write_text(damage)
        assert StepCosts(path, {"base": 1}, SHARED).behind(0).curve.spread is None


def test_a_busy_machine_is_measured_again_after_a_while(path, monkeypatch):
    costs = StepCosts(path, {}, SHARED)
    timings = costs.behind(0)
    measured(costs, lambda number: (1.0, 1.6, 0.9, 1.4, 0.7)[number * 7 % 11 % 5])
    assert timings.curve.busy and timings.wanted() is None
    assert "busy" in timings.state
    typical = typical_costs._LINUX["nodes"][1] / typical_costs._LINUX["none"][0]
    assert min(timings.relative("nodes")[2:]) >= typical, "not believed"
    timings.refresh()
    assert timings.wanted() is None
    monkeypatch.setattr(step_costs, "_AGAIN_AFTER", -1.0)
    timings.refresh()
    measured(costs)
    assert "quiet" in timings.state
    timings.refresh()
    assert timings.wanted() is None


# A GPU's costs, which are steps and grow with the text -------------------------------------------

M3_MAX = chip("M3 Max")
MODEL = Shape("8B", 36, 4096, 12288, 32, 8, 128, 151936)
GPU = on_gpu(M3_MAX, MODEL, 4, None)
ALONE = "plain", "none"
SOLO = (1.0, 0.02), (1.2, 0.02)


def seconds_on(machine, place, nodes, context):
    return 1e-3 * predicted(machine, MODEL, 4, None, context)[place][nodes - 1]


def test_on_a_gpu_the_end_of_each_step_is_timed():
    """M3: weights are read once for five rows; after eight attention has another kernel."""
    sizes = GPU[0].sizes
    assert {1, 5, 8, 10, 16} <= set(sizes) and not {9, 11, 13, 14, 15} & set(sizes)
    assert {one.sizes for one in GPU} == {sizes}, "one set of compiled steps serves all lengths"
    of_m1 = on_gpu(chip("M1 Max"), MODEL, 4, None)[0].sizes
    assert {2, 3, 4, 5, 8, 9} <= set(of_m1), "rows of qmv are computed one by one"


def test_a_gpus_curve_is_predicted_until_it_is_timed_at_each_length(path):
    """The machine is not what was predicted: a fifth slower, and its steps are higher."""
    true = replace(M3_MAX, clock=0.7 * M3_MAX.clock, bandwidth=0.9 * M3_MAX.bandwidth)
    costs = StepCosts(path, {}, ALONE, GPU)
    assert [costs.behind(n) for n in (1024, 1025, 9000)] == costs.by_length
    short, _, long = costs.by_length
    assert short.state == "predicted for Apple M3 Max, not measured yet"
    assert long.curve.plain == seconds_on(M3_MAX, "plain", 1, 16384)
    for timings, context in ((short, 512), (long, 16384)):
        rounds = 0
        while kind := timings.wanted():
            timings.note(seconds_on(true, *kind, context))
            rounds += kind == ("plain", 1)
        assert rounds >= 3, "a single round would count as a busy machine"
        assert "quiet" in timings.state
        for nodes in range(2, 17):
            expected = seconds_on(true, "none", nodes, context)
            assert timings.curve.seconds("none", nodes) == pytest.approx(expected, rel=0.03)
    assert costs.by_length[1].curve.spread is None
    costs.save()
    again = StepCosts(path, {}, ALONE, GPU)
    assert [one.curve for one in again.by_length] == [one.curve for one in costs.by_length]


def test_typical_costs_are_those_of_the_chip_and_of_every_family(monkeypatch):
    model = speculative_model()
    assert typical_costs.typical_costs(model) is typical_costs.ON_CPU
    monkeypatch.setattr(device, "backend", lambda: "metal")
    for processor, name in ("Apple M4 Pro", "M4 Pro"), ("Apple M9", "M5"), ("AMD EPYC", "M5 Max"):
        monkeypatch.setattr(device, "processor", lambda: processor)  # noqa: B023
        typical = typical_costs.typical_costs(model)
        assert {one.origin for one in typical} == {f"Apple {name}"}
        assert set(typical[0].points) == set(places_of(model.guessing))
    assert DraftSettings().tree_size == 7, "with the root 8 rows"
    sizes = {"hidden_size": 640, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97}
    opt = typical_costs.shape_of(sizes | {"model_type": "opt", "ffn_dim": 128})
    assert (opt.intermediate, opt.kv_heads, opt.head_dim) == (128, 4, 160)
    gemma = typical_costs.shape_of(sizes | {"model_type": "gemma3_text", "intermediate_size": 99})
    assert (gemma.intermediate, gemma.head_dim) == (99, 256)


@pytest.mark.parametrize("mode", ["lossless", "shared", "head"])
def test_what_guesses_is_part_of_the_prediction(mode):
    """Streams beside one node cost less than beside all, and the more rows, the more."""
    streams = HeadConfig("medusa", 4, "plain")
    if mode != "head":
        streams = speculative_model(mode=mode).streams.config
        streams = replace(streams, num_hidden_layers=MODEL.layers, num_msa_layers=6)
    costs = predicted(M3_MAX, MODEL, 4, streams, 512)
    assert set(costs) == set(places_of(streams))
    *_, place = costs
    assert costs[place][1] > costs["none"][1]
    assert (costs["none"][3] > 1.1 * predicted(M3_MAX, MODEL, 4, None, 512)["none"][3]) == (
        mode == "shared"
    )


def test_without_a_file_nothing_is_timed():
    costs = StepCosts(None, {}, ALONE, GPU)
    assert costs.behind(0).wanted() is None
    before = costs.batches.share(2, SOLO)
    costs.batches.note(2, 8, False, 2, 99.0)
    assert costs.batches.share(2, SOLO).costs == before.costs
    costs.save()


def test_slow_steps_are_timed_over_several_texts_and_at_least_three_times(path):
    """Those of 70 B: one round of timings takes longer than the three seconds of a text."""
    costs = StepCosts(path, {}, ALONE, GPU)
    history, timed = new_history(costs, None), []
    for _ in range(40):
        planner = RulePlanner(history, None, 97)
        plan, spent = planner.first(3), 0.0
        for _ in range(200):
            taken = len(costs.by_length[0]._timings)
            planner.accept(plan, [3], 0.4)
            spent += 0.4 * (len(costs.by_length[0]._timings) != taken)
            plan = planner.plan(3, NO_GUESSES)
        timed.append(spent)
    assert max(timed) < 3.0 + 0.5
    kinds = len(GPU[0].sizes)
    assert sum(timed) == pytest.approx(3 * kinds * 0.4, abs=0.1)
    assert not costs.by_length[0].curve.busy
