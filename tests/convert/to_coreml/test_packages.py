"""A saved package computes what the MLX engine computes on the weights that the package holds."""

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import (
    ADAPTER,
    CASES,
    SETTINGS,
    SIZES,
    VOCAB_SIZE,
    Case,
    Pair,
    plain_text,
    random_model,
    tree_of,
)
from coremltools.converters.mil.mil import Builder as mb
from random_models import random_prompt, relative_error, step_by
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.streams import StreamRows
from specstream_mlx.convert.to_coreml.weights import encode

from specstream_mlx.request import Request

BOUND = 1e-4


class Calls:
    """Both halves of each step of a package, by the decoder's own inputs."""

    def __init__(self, decoder):
        self._decoder = decoder
        self.call = decoder._call

    def prefill(self, tokens):
        for first in range(0, len(tokens), SIZES.chunk):
            self._decoder.prefill(mx.array(tokens[first : first + SIZES.chunk]))

    def step(self, tree, count):
        decoder = self._decoder
        inputs, decoder._tree = decoder._inputs(tree, count), tree
        without = {name: value for name, value in inputs.items() if name != "parents"}
        found = self.call(f"logits{count}", without, dict(decoder._states))
        found |= self.call(f"step{count}", inputs, decoder._states)
        decoder._settle()
        return found

    def commit(self, path):
        self._decoder.commit([path], [path])

    def forget_the_path(self):
        self._decoder._order = self._decoder._in_order


def differences(pair, *, steps=6, seed=0, adapter="one", ours=None, before=None):
    """Decode the same trees on both sides, committing what MLX accepts.

    Returns the largest relative differences of logits and of log-probabilities, and whether all
    integers are equal; ``before`` is called with the package's side before each step.
    """
    rng = np.random.default_rng(seed)
    prompt = random_prompt(21, seed=seed, vocab_size=VOCAB_SIZE)
    truth = plain_text(pair.decoder(adapter), Request(prompt, max_tokens=4 * steps))
    theirs, ours = pair.decoder(adapter), Calls(ours or pair.package_decoder(adapter))
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


def check(pair, **how):
    logits, guesses, equal = differences(pair, **how)
    assert equal
    assert max(logits, guesses) <= BOUND


def check_drafting_apart(pair):
    """``draft`` guesses what the whole step does."""
    ours, prompt = Calls(pair.package_decoder()), random_prompt(12, vocab_size=VOCAB_SIZE)
    ours.prefill(prompt[:-1])
    tree = tree_of(np.random.default_rng(1), prompt[-1], [], SIZES.nodes[1])
    found = ours.step(tree, SIZES.nodes[1])
    inputs = {"streamHidden": found["streamHidden"][found["last"].item()]}
    if "candidateParents" in found:
        inputs["token"] = found["predictions"][found["last"]]
    apart = ours.call("draft", inputs)
    assert apart.keys() == {"candidates", "logProbs", "candidateParents"} & found.keys()
    for name, value in apart.items():
        assert (value == found[name]).all()


@pytest.mark.parametrize("kind", ["lossless", "conditioned", "bare", "shared"])
def test_a_package_computes_what_the_engine_does(kind, request):
    pair = request.getfixturevalue(kind)
    check(pair)
    if kind == "shared":
        check(pair, adapter="other", seed=3)
    elif kind != "bare":
        check_drafting_apart(pair)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_packages_of_other_kinds_do(name, tmp_path):
    pair = Pair(tmp_path / "x.mlpackage", CASES[name])
    check(pair)
    if pair.case.streams is not None:
        check_drafting_apart(pair)


# Negative controls: what is wrong shows as at least a hundred times the bound ---------------------


def test_what_is_wrong_shows(shared):
    """A commit left out, and the functions of the other adapter."""
    logits, _, _ = differences(shared, before=Calls.forget_the_path)
    assert logits > 100 * BOUND
    logits, guesses, _ = differences(shared, ours=shared.package_decoder("other"))
    assert min(logits, guesses) > 100 * BOUND


@pytest.mark.slow
def test_shifted_streams_show(tmp_path, monkeypatch):
    """Streams that stand one position too far."""
    own = StreamRows.positions

    def shifted(self, main):
        positions = own(self, main)
        further = np.repeat([0, 1], [main.shape[0], positions.shape[0] - main.shape[0]])
        return mb.add(x=positions, y=further.astype(np.int32))

    monkeypatch.setattr(StreamRows, "positions", shifted)
    logits, guesses, _ = differences(Pair(tmp_path / "x.mlpackage", Case(streams=ADAPTER)))
    assert logits <= BOUND  # lossless
    assert guesses > 100 * BOUND


def test_half_precision_stays_near(shared):
    ours = shared.package_decoder("one", Package(shared.path, "fp16"))
    logits, guesses, _ = differences(shared, ours=ours)
    assert BOUND < max(logits, guesses) < 0.1


def test_weights_are_written_once(shared):
    """For all functions of both adapters."""
    (file,) = shared.path.rglob("weight.bin")
    content = file.read_bytes()
    for layer in random_model(shared.case).layers:
        assert content.count(encode(layer.mlp.gate_proj).q.tobytes()) == 1
