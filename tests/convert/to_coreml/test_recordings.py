"""Recorded calls: what the file holds, and that a replay finds what is wrong."""

import json
from copy import deepcopy

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import SIZES, VOCAB_SIZE, plain_text
from random_models import random_prompt
from specstream_mlx.convert.to_coreml import recordings

from specstream_mlx import UserError, keyed_sampler
from specstream_mlx.request import Request

PROMPT = random_prompt(SIZES.chunk + 3, vocab_size=VOCAB_SIZE)


def silent(done, total, description=None):
    pass


def record(pair, *requests):
    requests = [("one", request) for request in requests]
    return recordings.record(pair.contents, pair.package, requests, silent)


def complaint(recorded, pair, exact):
    return recordings.replay(recorded, pair.package, exact, silent).complaint()


@pytest.fixture(scope="module")
def recorded(lossless):
    """A greedy text and a drawn one."""
    drawn = Request(PROMPT[:3], max_tokens=5, sampler=keyed_sampler(3))
    return record(lossless, Request(PROMPT, max_tokens=7), drawn)


def test_a_recording_is_what_was_decoded(lossless, recorded):
    greedy, drawn = recorded["runs"]
    assert greedy["tokens"] == plain_text(lossless.decoder(), Request(PROMPT, max_tokens=7))
    assert (greedy["prompt"], greedy["settings"]["max_tokens"]) == (PROMPT, 7)
    assert greedy["settings"]["tree_size"] == SIZES.nodes[0] - 1
    assert (greedy["settings"]["seed"], greedy["settings"]["temperature"]) == (None, 0.0)
    assert (drawn["settings"]["seed"], drawn["settings"]["temperature"]) == (3, 1.0)
    names = [call["function"] for call in greedy["calls"]]
    assert names[:2] == ["one_prefill8", "one_prefill8"]
    assert set(names[2:]) <= {"one_step5", "one_step8"}
    assert {call["function"] for call in drawn["calls"]} >= {"one_logits5", "one_draft"}


def test_what_differs_is_named(lossless, recorded):
    far, turned = deepcopy(recorded), deepcopy(recorded)
    call = next(c for c in far["runs"][1]["calls"] if c["function"] == "one_logits5")
    call["outputs"]["logits"][0][5] += 5.0
    for call in (call for run in turned["runs"] for call in run["calls"]):
        if "candidates" in call["outputs"]:
            call["outputs"]["candidates"][0][0] += 1
            call["outputs"]["logProbs"][0][0] -= 5.0  # which is that of another guess
    for exact in (True, False):
        assert complaint(far, lossless, exact).startswith("logits of one_logits5 differs by")
    assert "integers are equal, expected at least 100%" in complaint(turned, lossless, True)
    assert complaint(turned, lossless, False) is None  # near-ties are few, but there are some


def test_what_is_said_of_the_same_guess_must_be_the_same(conditioned):
    recorded = record(conditioned, Request([1, 2, 3], max_tokens=4))
    for place, wrong in (((1, 0, 0), True), ((1, 0, 1), False)):
        changed = deepcopy(recorded)
        step = next(c["outputs"] for c in changed["runs"][0]["calls"] if "step" in c["function"])
        depth, path, guess = place
        step["logProbs"][depth, path, guess] -= 2.0
        if not wrong:  # the guess of another path
            first, second = divmod(step["candidateParents"][depth, path], SIZES.candidates)
            step["candidates"][depth - 1, first, second] += 1
        sentence = complaint(changed, conditioned, exact=False)
        assert (sentence is not None) == wrong, sentence


def test_what_does_not_fit_is_refused(lossless, recorded, tmp_path):
    path = tmp_path / "calls.json"
    whole = {"format": 1, "fingerprint": "of no file", "runs": []}
    for change, sentence in (
        ({"format": 2}, "has the format 2, expected 1"),
        ({"fingerprint": "other"}, "fingerprint 'other', expected of no file"),
        ({"runs": 3}, "is damaged .TypeError"),
        ({"runs": [{"calls": [], "adapter": "two"}]}, "the adapter is 'two'"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(UserError, match=sentence):
            recordings.read(path, lossless.contents)
    for change, sentence in (
        ({"function": "two_step5"}, "cannot run two_step5: .*there is no function two_step5"),
        ({"outputs": {"last": np.zeros(1)}}, "returns {'end': .*expected {'last'.* as recorded"),
        ({"inputs": {"length": np.zeros(1)}}, "cannot run one_prefill8: it takes"),
    ):
        changed = deepcopy(recorded)
        changed["runs"][0]["calls"][0].update(change)
        with pytest.raises(UserError, match=sentence):
            complaint(changed, lossless, exact=True)
