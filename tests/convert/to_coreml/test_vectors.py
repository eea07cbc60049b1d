"""Recorded calls: what the file holds, and that a replay finds what is wrong."""

import json
from copy import deepcopy

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import SIZES, VOCAB_SIZE, plain_text
from random_models import random_prompt
from specstream_mlx.convert.to_coreml import vectors
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.vectors import Asked

from specstream_mlx import UserError
from specstream_mlx.request import Request

PROMPT = random_prompt(SIZES.chunk + 3, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def recorded(lossless):
    """A greedy text and a drawn one."""
    asked = [Asked("one", PROMPT, 7), Asked("one", PROMPT[:3], 5, temperature=1.0, seed=3)]
    return vectors.record(Contents.read(lossless.path), lossless.package, asked)


def test_a_recording_is_what_was_decoded(lossless, recorded):
    greedy, drawn = recorded["runs"]
    truth = plain_text(lossless.decoder(), Request(PROMPT, max_tokens=7))
    assert greedy["tokens"] == truth
    assert greedy["prompt"] == PROMPT
    assert greedy["settings"] == {
        "tree_size": SIZES.nodes[0] - 1,
        "temperature": 0.0,
        "seed": None,
        "max_tokens": 7,
        "stop_tokens": [],
    }
    assert drawn["settings"]["seed"] == 3
    names = [call["function"] for call in greedy["calls"]]
    assert names[:2] == ["one_prefill8", "one_prefill8"]
    assert set(names[2:]) <= {"one_step5", "one_step8"}
    assert {call["function"] for call in drawn["calls"]} >= {"one_logits5", "one_draft"}
    assert recorded["fingerprint"] == "of no file"
    assert recorded["package"] == "lossless.mlpackage"


@pytest.mark.parametrize("exact", [True, False])
def test_what_differs_is_named(lossless, recorded, exact):
    changed = deepcopy(recorded)
    call = next(c for c in changed["runs"][1]["calls"] if c["function"] == "one_logits5")
    call["outputs"]["logits"][0][5] += 5.0
    sentence = vectors.replay(changed, lossless.package, exact).complaint()
    assert sentence.startswith("logits of one_logits5 differs by")
    changed = deepcopy(recorded)
    for run in changed["runs"]:
        for call in run["calls"]:
            if "candidates" in call["outputs"]:
                call["outputs"]["candidates"][0][0] += 1
                call["outputs"]["logProbs"][0][0] -= 5.0  # which is that of another guess
    sentence = vectors.replay(changed, lossless.package, exact).complaint()
    if exact:
        assert "integers are equal, expected at least 100%" in sentence
    else:
        assert sentence is None  # near-ties are few, but there are some


def test_what_is_said_of_the_same_guess_must_be_the_same(conditioned):
    asked = [vectors.Asked("one", [1, 2, 3], 4)]
    contents = Contents.read(conditioned.path)
    recorded = vectors.record(contents, conditioned.package, asked)
    step = next(c["outputs"] for c in recorded["runs"][0]["calls"] if "step" in c["function"])
    for place, wrong in (((1, 0, 0), True), ((1, 0, 1), False)):
        changed = deepcopy(recorded)
        step = next(c["outputs"] for c in changed["runs"][0]["calls"] if "step" in c["function"])
        depth, path, guess = place
        step["logProbs"][depth][path][guess] -= 2.0
        if not wrong:  # the guess of another path
            first, second = divmod(step["candidateParents"][depth][path], SIZES.candidates)
            step["candidates"][depth - 1][first][second] += 1
        complaint = vectors.replay(changed, conditioned.package, exact=False).complaint()
        assert (complaint is not None) == wrong, complaint


CALL = {"function": "one_prefill8", "inputs": {}, "outputs": {}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "has the format 2, expected 1"),
        ({"fingerprint": "other"}, "fingerprint 'other', expected of no file"),
        ({"runs": [{"calls": [{"function": 5}]}]}, "run 0 is damaged"),
        ({"runs": [{"calls": [CALL], "adapter": "two"}]}, "the adapter is 'two'"),
    ],
)
def test_damaged_recordings(lossless, recorded, tmp_path, change, sentence):
    path = tmp_path / "calls.json"
    path.write_text(json.dumps({**recorded, **change}))
    with pytest.raises(UserError, match=sentence):
        vectors.read(path, Contents.read(lossless.path))


def test_recordings_that_do_not_fit(lossless, recorded):
    for change, sentence in (
        ({"function": "two_step5"}, "refuses a recorded call of two_step5"),
        ({"outputs": {"last": [0]}}, r"returns \['end'\], expected \['last'\]"),
        ({"outputs": {"end": [0, 1]}}, "end of one_prefill8 has the shape"),
    ):
        changed = deepcopy(recorded)
        changed["runs"][0]["calls"][0].update(change)
        with pytest.raises(UserError, match=sentence):
            vectors.replay(changed, lossless.package, exact=True)
