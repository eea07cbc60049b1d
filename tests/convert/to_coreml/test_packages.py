"""A saved package computes what the MLX engine computes on the weights that the package holds."""

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import (
    ADAPTER,
    BARE,
    CASES,
    CONDITIONED_HEADS,
    LOSSLESS,
    SETTINGS,
    SIZES,
    VOCAB_SIZE,
    Case,
    Pair,
    greedy_tokens,
    tree_of,
)
from random_models import random_prompt, relative_error, step_by

BOUND = 1e-4


def differences(pair, *, steps=6, seed=0, adapter="one", ours=None, before=None):
    """Decode the same trees on both sides, committing what MLX accepts.

    Returns the largest relative differences of logits and of log-probabilities, and whether all
    integers are equal; ``before`` is called with the package's side before each step.
    """
    rng = np.random.default_rng(seed)
    prompt = random_prompt(21, seed=seed, vocab_size=VOCAB_SIZE)
    truth = greedy_tokens(pair.decoder(adapter), prompt, 4 * steps)
    theirs, ours = pair.decoder(adapter), ours or pair.runner(adapter)
    theirs.prefill(mx.array(prompt[:-1]))
    ours.prefill(prompt[:-1])
    logits, guesses, equal, tokens, longest = 0.0, 0.0, True, [], 0
    for number in range(steps):
        count = SIZES.nodes[number % len(SIZES.nodes)]
        tree = tree_of(rng, [prompt[-1], *tokens][-1], truth[len(tokens) :], count)
        expected = step_by(theirs, tree, SETTINGS)
        if before is not None:
            before(ours)
        found = ours.step(tree, count)
        n = len(tree)
        logits = max(logits, relative_error(found["logits"][:n], expected.logits))
        equal &= found["predictions"][:n].tolist() == expected.predictions.tolist()
        equal &= found["last"].item() == expected.last.item()
        if (streams := expected.streams) is not None:
            equal &= (found["candidates"] == np.array(streams.candidates)).all()
            guesses = max(guesses, relative_error(found["logProbs"], streams.log_probs))
            if streams.parents is not None:
                equal &= (found["candidateParents"] == np.array(streams.parents)).all()
        _, path, kept = expected.accepted(tree)
        theirs.commit([path], [kept])
        ours.commit(path)
        tokens += [*(int(t) for t in tree.tokens[path[1:]]), expected.prediction()]
        longest = max(longest, len(path))
    assert tokens[: len(truth)] == truth[: len(tokens)]
    assert longest > 2
    return logits, guesses, bool(equal)


BY_FIXTURES = LOSSLESS, CONDITIONED_HEADS, BARE


@pytest.fixture
def pair(shared):
    return shared


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CASES if n not in BY_FIXTURES])
def test_package_computes_what_the_engine_does(name, tmp_path):
    pair = Pair(tmp_path / "x.mlpackage", CASES[name])
    check(pair)
    check_drafting_apart(pair.runner())


@pytest.mark.parametrize("kind", ["lossless", "conditioned", "bare"])
def test_these_compute_what_the_engine_does(kind, request):
    check(request.getfixturevalue(kind))


def check(pair):
    logits, guesses, equal = differences(pair)
    assert equal
    assert max(logits, guesses) <= BOUND


def test_both_adapters_of_a_package(pair):
    for adapter in ("one", "other"):
        logits, guesses, equal = differences(pair, adapter=adapter, seed=3)
        assert equal
        assert max(logits, guesses) <= BOUND


@pytest.mark.parametrize("kind", ["lossless", "conditioned"])
def test_drafting_apart_guesses_the_same(kind, request):
    check_drafting_apart(request.getfixturevalue(kind).runner())


def check_drafting_apart(ours):
    prompt = random_prompt(12, vocab_size=VOCAB_SIZE)
    ours.prefill(prompt[:-1])
    tree = tree_of(np.random.default_rng(1), prompt[-1], [], SIZES.nodes[1])
    found = ours.step(tree, SIZES.nodes[1])
    last = found["last"].item()
    inputs = {"streamHidden": found["streamHidden"][last]}
    if "candidateParents" in found:
        inputs["token"] = found["predictions"][[last]]
    apart = ours.call("draft", inputs)
    assert apart.keys() == {"candidates", "logProbs", "candidateParents"} & found.keys()
    for name, value in apart.items():
        assert (value == found[name]).all()


# Negative controls: what is wrong shows as at least a hundred times the bound ---------------------


def test_commit_left_out_shows(pair):
    def leave_out(ours):
        ours.order = sorted(ours.order)

    logits, _, _ = differences(pair, before=leave_out)
    assert logits > 100 * BOUND


def test_swapped_adapters_show(pair):
    logits, guesses, _ = differences(pair, ours=pair.runner("other"))
    assert min(logits, guesses) > 100 * BOUND


@pytest.mark.slow
def test_shifted_streams_show(tmp_path, monkeypatch):
    from specstream_mlx.convert.to_coreml import functions

    own = functions._Beside.positions
    monkeypatch.setattr(
        functions._Beside, "positions", lambda self, main: shifted(own(self, main), self._count)
    )
    pair = Pair(tmp_path / "x.mlpackage", Case(streams=ADAPTER))
    logits, guesses, _ = differences(pair)
    assert logits <= BOUND  # lossless
    assert guesses > 100 * BOUND


def shifted(positions, nodes):
    """Positions of nodes and streams, those of the streams one too large."""
    from coremltools.converters.mil.mil import Builder as mb

    further = np.array([0] * nodes + [1] * (positions.shape[0] - nodes), np.int32)
    return mb.add(x=positions, y=further)


# Half precision, and the size of the file -----------------------------


def test_half_precision_stays_near(pair):
    logits, guesses, _ = differences(pair, ours=pair.runner(mode="fp16"))
    assert BOUND < max(logits, guesses) < 0.1


def test_weights_are_written_once(pair):
    (file,) = pair.path.rglob("weight.bin")
    content, found = file.read_bytes(), 0
    for function in pair.package.functions.values():
        for op in function.operations:
            if op.op_type.startswith("constexpr"):
                assert content.count(op.inputs["data"].val.tobytes()) == 1
                found += 1
    assert found > len(pair.package.functions)
