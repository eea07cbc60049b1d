"""The tuner: costs, what is chosen from them, its cache, and the command line."""

import json
import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from command_line import run
from specstream_mlx.convert.demo_model import calibration, tasks

from specstream_mlx import DraftSettings, UserError, bundled, load, stream_generate
from specstream_mlx.autotune import trials, tuning
from specstream_mlx.autotune.adaptive import AdaptiveDrafting
from specstream_mlx.autotune.calibration import (
    CALIBRATION_FILE,
    GENERAL_PROMPTS,
    calibration_prompts,
    read_prompts,
)
from specstream_mlx.autotune.cost import StepCosts
from specstream_mlx.autotune.grid import arms, drafts
from specstream_mlx.autotune.replay import Recording
from specstream_mlx.autotune.trials import relative
from specstream_mlx.autotune.tuning import TuningResult, choose, tune, tuned_drafting
from specstream_mlx.config import StreamConfig
from specstream_mlx.engine.kv_quantization import KVQuantization
from specstream_mlx.hardware import device

STREAMS = StreamConfig(mode="lossless", hidden_size=8, num_hidden_layers=4, num_msa_layers=2)
SMALL = replace(STREAMS, num_streams=3), 90  # no more than the tiny model has
COUNTS = (1, 2, 4, 8, 16, 24)
PROMPTS = ["the meeting", "a report"]


@pytest.fixture(autouse=True)
def quick_and_apart(monkeypatch, tmp_path):
    """The tuner takes little time and has a cache of its own."""
    for name in ("_COST_SECONDS", "_RECORD_SECONDS", "_TRIAL_SECONDS"):
        monkeypatch.setattr(tuning, name, 0.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def costs(per_node, deferred=0.1, beside=0.4):
    """A step without drafts takes 1 s, each node more, deferred streams, streams of each node."""
    return StepCosts(
        1.0,
        {
            "none": tuple((n, 1 + per_node * (n - 1)) for n in COUNTS),
            "deferred": tuple((n, 1 + deferred + per_node * (n - 1)) for n in COUNTS),
            "beside": tuple((n, 1 + beside * n + per_node * (n - 1)) for n in COUNTS),
        },
    )


def text(right_at, *, gamma=4, width=6, count=120, prompt=(0,), tokens=None, sure=0.8):
    """A recording whose streams have the right token at rank ``right_at(place, depth)``.

    No rank, ``None``, is a guess that is nowhere right. ``sure`` is the first rank's probability.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(100, 5000, count).tolist() if tokens is None else tokens
    wrong = np.arange(width, dtype=np.int32)
    candidates = np.tile(wrong, (len(tokens), gamma, 1))
    for place in range(len(tokens)):
        for depth in range(gamma):
            rank = right_at(place, depth)
            if rank is not None and place + depth + 1 < len(tokens):
                candidates[place, depth, rank] = tokens[place + depth + 1]
    probabilities = [sure, *[(1 - sure) / 8] * (width - 1)]
    log_probs = np.broadcast_to(np.log(probabilities), candidates.shape).astype(np.float32)
    return Recording(list(prompt), tokens, candidates, log_probs)


@pytest.fixture
def measured(monkeypatch):
    """What the tuner finds, without measuring."""
    found = arms([text(lambda place, depth: 0 if depth < 2 else None, gamma=3)], costs(0.1), *SMALL)
    result = TuningResult(choose(found), tuple(found[:3]), costs(0.1), ((0.5, 0.1),), 1, 120, 2.5)
    calls = []
    monkeypatch.setattr(tuning, "measure", lambda *_: calls.append(1) or result)
    return calls


@cache
def some_arms(right=True):
    """Arms where the streams' first rank is always right, or no rank is."""
    return arms([text(lambda *_: 0 if right else None)], costs(0.1), STREAMS, 5000)


def best(recording, table, streams=STREAMS):
    return choose(arms([recording], table, streams, 5000))[0]


def best_without_lookup(recording, table):
    found = arms([recording], table, STREAMS, 5000)
    return choose([arm for arm in found if arm.kind in ("streams", "plain")])[0]


def test_plain_wins_where_streams_are_useless():
    useless = text(lambda place, depth: None)
    assert best(useless, costs(0.02)).kind == "plain"


def test_plain_wins_where_rows_are_dear():
    """As with the reference BLAS: n rows cost n times one."""
    half = text(lambda place, depth: 0 if (place + depth) % 2 else None, sure=0.6)
    assert best(half, costs(1.0)).kind == "plain"
    assert best(half, costs(0.02)).kind == "streams"


def test_width_pays_only_where_the_second_rank_is_right():
    first = text(lambda place, depth: 0)
    ranks = np.random.default_rng(3).integers(0, 2, 200).tolist()
    second = text(lambda place, depth: ranks[place] if depth < 2 else None, sure=0.5)
    certain = best_without_lookup(first, costs(0.05))
    assert certain.settings.tree_width == 1
    assert certain.nodes > 4.5
    assert best_without_lookup(second, costs(0.02)).settings.tree_width == 4


def test_lookup_wins_where_text_is_copied():
    words = np.random.default_rng(1).integers(100, 5000, 60).tolist()
    copied = text(lambda place, depth: None, prompt=[*words, 7], tokens=words)
    assert best(copied, costs(0.05)).kind == "lookup"
    assert best(copied, costs(0.05), None).kind == "lookup"


def test_dear_streams_run_where_they_are_cheap():
    first = text(lambda place, depth: 0)
    assert best(first, costs(0.05, deferred=0.1, beside=0.4)).settings.deferred
    assert not best(first, costs(0.05, deferred=5.0, beside=0.1)).settings.deferred


def test_shared_streams_run_beside_every_node():
    config = replace(STREAMS, mode="shared")
    table = StepCosts(1.0, {"beside": costs(0.05).table["beside"]})
    found = arms([text(lambda place, depth: 0)], table, config, 5000)
    assert {arm.settings.placement(config) for arm in found} == {"beside"}
    assert found[0].kind in ("streams", "hybrid")


def test_the_choice_is_the_arg_max():
    table = costs(0.07)
    found = arms([text(lambda place, depth: depth % 3, sure=0.4)], table, STREAMS, 5000)
    assert found == sorted(found, key=lambda arm: -arm.rate)
    chosen = choose(found)
    assert chosen[0] == found[0]
    assert len({arm.kind for arm in chosen}) == len(chosen) == 4
    kinds = len(list(drafts(STREAMS, 5000)))
    assert kinds < len(found) < 2 * kinds + 2


def test_plain_is_preferred_to_what_is_hardly_better():
    plain = next(arm for arm in some_arms(right=False) if arm.kind == "plain")
    for gain, kind in ((1.01, "plain"), (1.05, "lookup")):
        other = replace(plain, kind="lookup", tokens=gain)
        assert choose([other, plain])[0].kind == kind


def test_of_equal_arms_the_one_with_fewest_nodes_is_chosen():
    found = some_arms()
    best = next(arm for arm in found if arm.kind == "streams")
    smaller = replace(best, nodes=best.nodes - 2, seconds=1.001 * best.seconds)
    slower = replace(best, nodes=best.nodes - 3, seconds=1.003 * best.seconds)
    others = [arm for arm in found if arm.kind != "hybrid"]
    assert choose([best, smaller, slower, *others])[0] == smaller


def test_hybrid_drafts_are_chosen_where_they_come_near_the_best():
    plain = next(arm for arm in some_arms(right=False) if arm.kind == "plain")
    best = replace(plain, kind="streams", tokens=2.0)
    for tokens, kind in ((1.99, "hybrid"), (1.95, "streams")):
        hybrid = replace(plain, kind="hybrid", tokens=tokens)
        assert choose([best, hybrid, plain])[0].kind == kind


def test_trials_take_the_drift_of_the_machine_out():
    """One group is off by a tenth, on a machine that becomes slower and faster again."""
    speeds = [1.0, 1.1, 1.2, 1.3, 1.4, 1.3, 1.2, 1.1, 1.0, 0.9]
    groups = ["a", "b", "b", "a", "a", "b", "b", "a", "b", "a"]
    off = {"a": 1.0, "b": 1.1}
    usual, ratios = relative([(g, off[g] * s) for g, s in zip(groups, speeds, strict=True)])
    assert usual == pytest.approx(1.15 * 1.1**0.5, rel=0.05)
    assert ratios["b"] / ratios["a"] == pytest.approx(1.1 ** (5 / 17), rel=0.015)
    assert relative([]) == (1.0, {})


def test_nodes_that_were_not_timed_are_not_drafted():
    table = costs(0.01)
    short = {placement: points[:3] for placement, points in table.table.items()}
    found = arms([text(lambda place, depth: 0)], StepCosts(1.0, short), STREAMS, 5000)
    assert max(len(arm.costs) for arm in found) == 4


def test_trials_correct_the_arms_on_a_machine_that_becomes_slower(monkeypatch):
    """Lookup's steps take a fifth longer than expected, beside plain ones and those of streams."""
    found, orders = some_arms(), []

    def ratio(model, arm, text, kv_cache):
        orders.append(arm.kind)
        return (1.2 if arm.kind == "lookup" else 1.0) * 1.01 ** len(orders)

    monkeypatch.setattr(trials, "_ratio", ratio)
    monkeypatch.setattr(trials, "_PROMISING", 0.0)
    result = trials.corrected(None, found, [text(lambda place, depth: 0)], 60)
    before, after = ({a.settings: a.seconds for a in list_} for list_ in (found, result))
    off = {a.kind: after[a.settings] / before[a.settings] for a in found}
    assert off["lookup"] / off["plain"] == pytest.approx(1.2**0.5, rel=0.01)
    assert off["streams"] / off["plain"] == pytest.approx(1, rel=0.01)
    assert [arm.rate for arm in result] == sorted((arm.rate for arm in result), reverse=True)
    kinds = len(orders) // trials._ROUNDS
    assert orders[:kinds] != orders[kinds : 2 * kinds]


@pytest.mark.parametrize("kind", ["streams", "shared", None])
def test_result_and_its_cache(kind, base, request, monkeypatch):
    adapter = kind and request.getfixturevalue(kind)
    model, tokenizer = load(base, adapter_path=adapter)
    assert tuning.cached(model) is None
    result = tune(model, tokenizer, PROMPTS, max_tokens=12)
    assert result.texts == 2 and result.arms[0] in result.ranking
    assert (result.acceptance is None) == (kind is None)
    assert result.reason().endswith(".")
    assert TuningResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    monkeypatch.setattr(tuning, "measure", None)
    assert tune(*load(base, adapter_path=adapter)) == tuning.cached(model) == result
    with pytest.raises(TypeError):  # it would measure
        tune(model, tokenizer, again=True)


def test_cached_results_are_for_the_same_only(measured, base, streams, shared, monkeypatch):
    model, tokenizer = load(base, adapter_path=streams)
    tune(model, tokenizer, PROMPTS, max_tokens=12)
    assert tuning.cached(model) is not None
    assert tuning.cached(model, KVQuantization(8, 64, 0)) is None
    assert tuning.cached(model, KVQuantization(8)) is not None, "quantized only far behind"
    model.held = replace(model.held, form="packed")
    assert tuning.cached(model) is None
    model.held = replace(model.held, form="expanded")
    other = device.describe() | {"blas": "another"}
    with monkeypatch.context() as patch:
        patch.setattr(device, "describe", lambda: other)
        assert tuning.cached(model) is None
    model.swap_adapter(shared)
    assert tuning.cached(model) is None
    model.swap_adapter(streams)
    assert tuning.cached(model) is not None
    with monkeypatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        patch.setattr(os, "cpu_count", lambda: 4)
        assert tuning.cached(model) is None
    texts = streams / "calibration.jsonl"
    texts.write_text('{"prompt": "Hello"}\n')
    assert tuning.cached(model) is None
    texts.unlink()
    assert tuning.cached(model) is not None
    file = streams / "speculative_streaming.safetensors"
    file.touch()
    assert tuning.cached(model) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: "{",
        lambda values: "[1]",
        lambda values: json.dumps(values | {"facts": {}}),
        lambda values: json.dumps(values | {"result": 3}),
        lambda values: json.dumps(values | {"result": values["result"] | {"arms": []}}),
        lambda values: json.dumps(values | {"result": values["result"] | {"costs": None}}),
        lambda values: json.dumps(values).replace('"tree_width": 4', '"tree_width": 0'),
        lambda values: json.dumps(values).replace('"tree_width"', '"tree_wide"'),
    ],
)
def test_damaged_cache_is_measured_anew(measured, base, streams, damage):
    model, tokenizer = load(base, adapter_path=streams)
    tune(model, tokenizer)
    (file,) = (tuning.user_cache.directory() / "tuning").iterdir()
    file.write_text(damage(json.loads(file.read_text())))
    assert tuning.cached(model) is None
    assert tune(model, tokenizer) == tuning.cached(model)
    assert len(measured) == 2


def test_automatic_settings_write_the_same_text(base, streams):
    model, tokenizer = load(base, adapter_path=streams)
    tune(model, tokenizer, PROMPTS, max_tokens=12)
    plain = DraftSettings(speculation=False)
    texts = [
        [r.token for r in stream_generate(model, tokenizer, "the", 30, settings=settings)]
        for settings in (tuned_drafting(model, tokenizer), plain)
    ]
    assert texts[0] == texts[1]


def test_a_generation_goes_on_from_what_the_last_one_learned(base, streams, monkeypatch):
    model, tokenizer = load(base, adapter_path=streams)
    result = tune(model, tokenizer, PROMPTS, max_tokens=12)
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: result)
    before = []
    begin = AdaptiveDrafting.successor
    monkeypatch.setattr(
        AdaptiveDrafting, "successor", lambda self: before.append(self) or begin(self)
    )
    first = tuned_drafting(model, tokenizer)
    second = tuned_drafting(model, tokenizer)
    assert before == [first] and second is not first
    tuned_drafting(model, tokenizer, KVQuantization(8, 32, 0))
    model.swap_adapter(None)
    tuned_drafting(model, tokenizer)
    assert before == [first]  # another cache, another adapter: nothing to go on from
    model.swap_adapter(streams)
    tuned_drafting(model, tokenizer)
    assert len(before) == 2
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: replace(result, arms=result.arms[::-1]))
    tuned_drafting(model, tokenizer)
    assert len(before) == (2 if len(result.arms) > 1 else 3)


def test_prompts_of_an_adapter(base, streams, tmp_path):
    model, _ = load(base, adapter_path=streams)
    assert calibration_prompts(model) == list(GENERAL_PROMPTS)
    file = streams / "calibration.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"prompt": "two", "id": 3}\n')
    try:
        assert calibration_prompts(model) == ["one", "two"]
    finally:
        file.unlink()
    lines = tmp_path / "lines.txt"
    lines.write_text("first text\n\nsecond {text}\n")
    assert read_prompts(lines) == ["first text", "second {text}"]


def test_bundled_prompts_are_from_the_training_split():
    for name in bundled.adapter_names():
        found = read_prompts(bundled.adapter_path(name) / CALIBRATION_FILE)
        assert found == calibration.prompts(name), "run convert.demo_model.calibration again"
        assert not set(found) & {item.content for item in tasks.held_out(name, 200)}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.txt", None, "none.txt cannot be read"),
        ("empty.txt", b"\n \n", "is empty, expected a prompt on each line"),
        ("binary.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("a.jsonl", b'{"prompt": "x"}\nhello\n', "line 2 is not JSON, expected an object"),
        ("b.jsonl", b'{"text": "x"}\n', "line 1 has no prompt, expected an object"),
        ("c.txt", b'{"prompt": 3}\n', "line 1 has no prompt, expected an object"),
    ],
)
def test_wrong_prompts_are_one_sentence(name, content, sentence, tmp_path):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as refused:
        read_prompts(file)
    assert "\n" not in str(refused.value)


def test_no_prompts_are_refused(base):
    with pytest.raises(UserError, match="prompts is empty"):
        tune(*load(base), [])


def test_the_command_prints_tables_and_json(base, streams, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    flags = ("tune", "--model", base, "--adapter-path", streams)
    result = run(*flags, "--prompts", file, "-m", 12)
    assert result.exit_code == 0, result.output
    for words in ("deferred", "depth", "tokens/s", "Chosen: ", "on 2 texts"):
        assert words in result.stdout
    again = run(*flags, "--json")
    values = json.loads(again.stdout)
    assert again.stderr == "", "the cache holds it"
    assert values["mode"] == "lossless" and values["texts"] == 2
    assert TuningResult.from_json(values).reason() == values["reason"]


def test_generate_tunes_itself_once(base, streams):
    flags = ("generate", "--model", base, "--adapter-path", streams, "-p", "the", "-m", 12)
    for spared in (("--no-tune",), ("--tree-size", 4)):
        assert "Measuring" not in run(*flags, *spared).stderr
    first, second = run(*flags), run(*flags, "--json", "--compare")
    assert "Measuring" in first.stderr and "as tuned" in first.stderr
    assert "Measuring" not in second.stderr
    values = json.loads(second.stdout)
    assert values["tree"].endswith("as tuned") and values["identical"] is True


def test_a_wrong_request_is_refused_before_anything_is_measured(base):
    result = run("generate", "--model", base, "-p", "the", "--stop", "")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
