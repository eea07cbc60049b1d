"""The rule against all that could have been chosen, and the text that it must not change."""

import itertools
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from random_models import plain_tokens, random_prompt, request, speculative_model, tokens_of

from specstream_mlx.drafting import rule, step_costs
from specstream_mlx.drafting.best_first import likeliest
from specstream_mlx.drafting.ngram import Lookup
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.drafting.rule import (
    LEAST,
    MOST_NODES,
    TRIALS,
    VALUE_WEIGHT,
    RulePlanner,
    history_of,
    new_history,
    places_of,
    rule_planner,
)
from specstream_mlx.drafting.step_costs import CostCurve, StepCosts
from specstream_mlx.engine.guess import NO_GUESSES, StreamGuesses
from specstream_mlx.engine.kv_quantization import KVQuantization
from specstream_mlx.engine.plan import Plan, root_only
from specstream_mlx.generation.batch import decode
from specstream_mlx.hardware import user_cache

SIZES = (1, 2, 4, 8, 16)


def curve(seconds):
    """A measured curve: seconds of a step of one node, and of each more."""
    points = {
        place: tuple((n, first + more * (n - 1)) for n in SIZES)
        for place, (first, more) in seconds.items()
    }
    return CostCurve(points, spread=0.01)


def random_curve(rng, streams, least, rows):
    return curve(
        {one: (rng.uniform(least, least + 1), rng.choice(rows)) for one in places_of(streams)}
    )


LOSSLESS = curve({"plain": (1, 0), "none": (1.15, 0.05), "one node": (1.6, 0.05)})
SHARED = curve({"none": (1, 0.06), "nodes": (1.1, 0.06)})


def streams_of(mode):
    return None if mode == "none" else speculative_model(mode=mode).streams.config


def drafting_at(tmp_path, measured, streams, proposals=(), **history):
    """A planner at a history whose costs are known."""
    costs = StepCosts(tmp_path / "costs.json", {}, places_of(streams))
    costs.behind(0).curve = measured
    return RulePlanner(replace(new_history(costs, streams), **history), streams, 97, proposals)


def guesses(rng, gamma=3, width=4):
    tokens = np.array([rng.sample(range(97), width) for _ in range(gamma)])
    shares = np.sort(np.array([[rng.random() for _ in range(width + 1)] for _ in tokens]))[:, ::-1]
    scores = np.log(shares[:, :width] / shares.sum(axis=1, keepdims=True))
    return StreamGuesses(tokens, scores)


def best_by_force(rate, nodes, costs, value):
    """The best (value, place, nodes) of all, from the formula of the module."""
    found = []
    for count in range(len(nodes) + 1):
        paths = [1.0, *(math.exp(node.score) for node in nodes[:count])]
        ends = list(paths)
        for number, node in enumerate(nodes[:count], start=1):
            ends[node.parent + 1] -= paths[number]
        for place, one in costs.items():
            if (place == "plain" and count) or (place == "none" and not count and "plain" in costs):
                continue
            worth = value * {"one node": max(ends), "nodes": 1.0}.get(place, 0.0)
            found.append((sum(paths) - rate * one[count + 1] + worth, place, count))
    return max(found)


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_the_best_of_all_places_and_beginnings_is_chosen(mode, tmp_path, monkeypatch):
    """Not the first beginning that does not gain: costs may have steps."""
    monkeypatch.setattr(rule, "TRIALS", 0.0)
    streams, chosen = streams_of(mode), set()
    for seed in range(40):
        rng = random.Random(seed)
        measured = random_curve(rng, streams, 1.0, [0, 0.02, 0.3])
        value, rate = rng.uniform(0, 1.5), rng.uniform(1, 3)
        drafting = drafting_at(tmp_path, measured, streams, value=value, valued=3)
        history = drafting.history
        drafting.accept(drafting.first(3), [3], None)
        history.tokens, history.time = 128.0 * rate, 128.0
        plan = drafting.plan(3, guesses(rng))
        nodes = list(itertools.islice(likeliest(drafting.averages.after, LEAST), MOST_NODES - 1))
        relative = {place: measured.relative(place) for place in measured.points}
        gain = best_by_force(rate, nodes, relative, value)[0]
        gain -= best_by_force(rate, [], relative, value)[0]
        assert history.value == pytest.approx(value + (gain - value) / 4)
        assert drafting.value == pytest.approx(value + (gain - value) / (VALUE_WEIGHT + 1))
        expected = best_by_force(rate, nodes, relative, drafting.value)
        assert (drafting.place_of(plan), len(plan.tree) - 1) == expected[1:]
        chosen.add(expected[1:])
    assert len(chosen) >= 4


def run(drafting, steps, guesses, text):
    """Take steps as the loop does: after a plain step the next call is under way already."""
    plans, planned, ahead = [], drafting.first(3), False
    for number in range(steps):
        plan = Plan(root_only(3), "plain") if ahead and not planned.pipelined else planned
        ahead = planned.pipelined
        plans.append(plan)
        drafting.accept(plan, text(number), 0.01)
        ran = drafting.place_of(plan) in ("one node", "nodes")
        planned = drafting.plan(3, guesses(number) if ran else NO_GUESSES)
    return plans


RIGHT = StreamGuesses(np.array([[3, 51]] * 3), np.log(np.array([[0.98, 0.01]] * 3)))
WRONG = StreamGuesses(np.array([[50, 51]] * 3), np.log(np.full((3, 2), 0.02)))
BOTH = [("lossless", LOSSLESS, "one node", "plain"), ("shared", SHARED, "nodes", "none")]


@pytest.mark.parametrize(("mode", "measured", "place", "rest"), BOTH)
def test_streams_are_left_out_as_far_as_they_are_not_right(mode, measured, place, rest, tmp_path):
    """They are tried again and again, also after texts in which they were right."""
    loss = measured.relative(place)[1] - measured.relative(rest)[1]  # of a step, in tokens
    for value in (0.0, 1.0):
        drafting = drafting_at(tmp_path, measured, streams_of(mode), value=value, tokens=128.0)
        plans = run(drafting, 4000, lambda number: WRONG, lambda number: [number + 100])
        places = [drafting.place_of(plan) for plan in plans]
        assert places.index(rest) < 20
        # Less is expected to be lost as long as v is too high.
        assert 0.8 * TRIALS < places[1000:].count(place) * loss / 3000 < 2 * TRIALS
        assert set(places) == {place, rest}
        assert [plan.pipelined for plan in plans] == [one == "plain" for one in places]
    drafting = drafting_at(tmp_path, measured, streams_of(mode), value=0.0)
    plans = run(
        drafting,
        2500,
        lambda number: RIGHT if number >= 500 else WRONG,
        lambda number: [3 if number >= 500 else number + 100],
    )
    places = [drafting.place_of(plan) for plan in plans]
    assert places[:500].count(place) < 20
    assert set(places[-1000:]) == {place}


def test_a_text_is_weighed_by_its_own_pace_and_not_by_its_first_guess(tmp_path):
    """After texts with guesses that paid, and one whose copies brought four tokens a plain step."""
    for tokens in (128.0, 512.0):
        history = {"tokens": tokens, "time": 128.0, "value": 1.0, "valued": 64}
        drafting = drafting_at(tmp_path, LOSSLESS, streams_of("lossless"), **history)
        plans = run(drafting, 24, lambda number: WRONG, lambda number: [number + 100])
        places = [drafting.place_of(plan) for plan in plans]
        assert places[1] == ("one node" if tokens == 128.0 else "plain")
        assert places[-1] == "plain" and drafting.history.rate < 1.3


@pytest.mark.parametrize(("mode", "measured", "place", "rest"), BOTH)
def test_what_was_seen_is_said_in_numbers_of_the_state(mode, measured, place, rest, tmp_path):
    lookup = Lookup(Material([7, 8, 9] * 3))
    drafting = drafting_at(tmp_path, measured, streams_of(mode), [lookup], value=0.1, tokens=256.0)
    text = [[7], [8], [9], [50], *([number] for number in range(60, 90))]
    plans = run(drafting, len(text), lambda number: WRONG, lambda number: text[number])
    places, seen = [drafting.place_of(plan) for plan in plans], drafting.draft_stats
    ran = [number for number, one in enumerate(places) if one == place]
    assert (seen.steps, seen.guessing) == (len(text), len(ran)) and 0 < len(ran) < len(text)
    costs = {one: measured.relative(one) for one in measured.points}
    sizes = [len(plans[number].tree) for number in ran]
    more = [costs[place][n] - costs[rest if n == 1 else "none"][n] for n in sizes]
    assert seen.cost == pytest.approx(sum(more))
    assert seen.price >= seen.cost  # a plain step's time brings a token at least
    later = [text[number + 1] for number in ran if number + 1 < len(text)]
    assert (seen.right, seen.guessed) == (later.count([50]), len(later))
    assert (seen.lookup_right, seen.lookup_guessed) == (3, 4)  # 7 followed 7 8 9, and 50 nothing
    each, right = len(ran), later.count([50]) / len(later)
    assert seen.sentence == (
        f"Streams guessed in {each} of {len(text)} steps: guessing took {sum(more) / each:.2f} "
        f"of a plain step here, time for {seen.price / each:.2f} tokens, and was to bring "
        f"{seen.worth / each:.2f}; their first guess was right {right:.0%} of the time, "
        "lookup's 75%"
    )
    other = drafting_at(tmp_path, LOSSLESS, None)  # without streams
    other.accept(other.first(3), [3], None)
    both = seen + other.draft_stats + seen
    assert (both.guesser, both.steps, both.right) == ("streams", 2 * len(text) + 1, 2 * seen.right)
    assert both.values()["first_guesses"] == {"right": both.right, "all": 2 * seen.guessed}
    busy = replace(drafting.draft_stats, timed="busy").sentence, replace(seen, timed=None).sentence
    assert " (timed while others used" in busy[0] and " (not timed here yet)" in busy[1]
    alone = replace(seen, guesser=None, guessing=0)
    assert alone.sentence == "Lookup's first guess was right 75% of the time"
    assert replace(alone, lookup_guessed=0).sentence is None
    assert replace(seen, guessing=seen.steps).sentence.startswith(
        f"Streams guessed in all {len(text)} steps; their first"
    )


@pytest.mark.parametrize("kind", ["lossless", "shared", "none"])
@pytest.mark.parametrize("seed", range(2))
def test_no_token_changes_whatever_costs_what(kind, seed, tmp_path):
    """While the curve is timed, by random curves, and with random worth of the streams."""
    model = speculative_model(mode="shared" if kind == "shared" else "lossless")
    if kind == "none":
        model.streams = None
    prompt = random_prompt(9, seed=seed) * 2
    expected = tokens_of(model, prompt, 70, speculation=False)[:70]
    if kind != "shared":
        assert expected == plain_tokens(model.model, prompt, 70)
    rng, streams = random.Random(seed), model.streams and model.streams.config
    drafting = rule_planner(model, prompt)
    if seed:
        measured, value = random_curve(rng, streams, 0.5, [0, 0, 0.05]), rng.uniform(0, 3)
        drafting = drafting_at(
            tmp_path, measured, streams, [Lookup(Material(prompt))], tokens=128.0, value=value
        )
    steps = list(decode(model, request(prompt, drafting, max_tokens=70)))
    assert [token for step in steps for token in step.tokens][:70] == expected
    sizes = [len(step.tree) for step in steps]
    assert sizes[0] == 1 and max(sizes) <= MOST_NODES
    assert len(set(sizes)) > 1 or seed
    assert {drafting.place_of(step.plan) for step in steps} <= set(places_of(streams))


def test_a_model_has_one_history_for_each_adapter_kind_of_cache_and_cable():
    model = speculative_model()
    history = history_of(model)
    assert history_of(model, KVQuantization(8, 32, 0)) is not history
    streams, model.streams = model.streams, None
    assert history_of(model).costs is not history.costs, "without streams other steps are possible"
    model.streams = streams
    assert history_of(model) is history
    facts = (2, ("ring", "127.0.0.1")), (2, ("jaccl", "10.0.0.1")), (3, ("jaccl", "10.0.0.1"))
    ranks = [SimpleNamespace(size=size, route=route) for size, route in facts]
    costs = [history_of(replace(model, ranks=one)).costs for one in (None, *ranks)]
    assert len(set(map(id, costs))) == 4


def test_a_generation_that_is_broken_off_keeps_its_timings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, prompt = speculative_model(seed=5), random_prompt(9)
    costs = history_of(model).costs
    steps = decode(model, request(prompt, None))
    for _ in range(20):
        next(steps)
    steps.close()
    [kept] = (user_cache.read(path) for path in step_costs.directory().glob("*.json"))
    assert len(kept["lengths"][0]["timings"]) == len(costs.behind(0)._timings) >= 5


def test_the_rule_drafts_less_beside_others(tmp_path):
    drafting = drafting_at(tmp_path, SHARED, streams_of("shared"))
    rng = random.Random(0)
    costs = drafting.share_pass(8)
    for nodes in (1, 2, 4, 1, 2, 4):
        costs.note(8, 8 * nodes, True, 8, 0.01 + 0.01 * 8 * nodes)  # rows are all that costs
    assert {len(drafting.plan(5, guesses(rng)).tree) for _ in range(20)} == {1}
    before = drafting.history.tokens, drafting.history.time
    drafting.accept(drafting.plan(5, guesses(rng)), [7], None)
    assert (drafting.history.tokens, drafting.history.time) == before  # which is of one text
    drafting.share_pass(1)
    assert max(len(drafting.plan(5, guesses(rng)).tree) for _ in range(20)) > 1
