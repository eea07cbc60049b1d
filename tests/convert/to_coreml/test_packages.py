"""A saved package computes what the MLX engine computes on the weights that the package holds."""

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import (
    CASES,
    SETTINGS,
    SIZES,
    VOCAB_SIZE,
    Pair,
    plain_text,
    random_model,
)
from random_models import random_prompt, random_tree, relative_error
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.weights import encode

from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.request import Request

BOUND = 1e-4


def tree_of(rng, root, truth, count):
    """A random tree of at most ``count`` nodes with a path of the true tokens, cut at random."""
    truth = truth[: rng.integers(0, 4)]
    tree = random_tree(rng, root, depth=3, width=2, vocab_size=VOCAB_SIZE, truth=truth)
    parts = tree.tokens, tree.parents, tree.depths, tree.log_probs
    return DraftTree(*(part[:count] for part in parts))


class WithLogits(VerifyRule):
    """``greedy`` by the functions that return logits, and ``draft``."""


def differences(pair, *, steps=6, seed=0, adapter="one", ours=None, before=None):
    """Decode the same trees on both sides by both halves of a step, committing what MLX accepts.

    Returns the largest relative differences of logits and of log-probabilities, and whether all
    integers are equal; ``before`` is called with the package's side before each step.
    """
    rng = np.random.default_rng(seed)
    prompt = random_prompt(21, seed=seed, vocab_size=VOCAB_SIZE)
    truth = plain_text(pair.decoder(adapter), Request(prompt, max_tokens=4 * steps))
    theirs, ours = pair.decoder(adapter), ours or pair.package_decoder(adapter)
    plan_of = SETTINGS.plans(theirs.streams and theirs.streams.config)
    theirs.prefill(mx.array(prompt[:-1]))
    for first in range(0, 20, SIZES.chunk):
        ours.prefill(mx.array(prompt[first : min(first + SIZES.chunk, 20)]))
    logits, guesses, equal, tokens, longest = 0.0, 0.0, True, [], 0
    for number in range(steps):
        count = SIZES.nodes[number % len(SIZES.nodes)]
        tree = tree_of(rng, [prompt[-1], *tokens][-1], truth[len(tokens) :], count)
        [expected] = theirs.step([plan_of(tree)], [VerifyRule()])
        if before is not None:
            before(ours)
        for rule in (WithLogits(), VerifyRule()):
            [found] = ours.step([plan_of(tree)], [rule])
            if found.logits is not None:
                logits = max(logits, relative_error(found.logits, expected.logits))
            pairs = [(found.predictions, expected.predictions), (found.last, expected.last)]
            if (streams := expected.streams) is not None:
                guesses = max(guesses, relative_error(found.streams.log_probs, streams.log_probs))
                pairs.append((found.streams.candidates, streams.candidates))
                if streams.parents is not None:
                    pairs.append((found.streams.parents, streams.parents))
            equal &= all(mx.array_equal(one, other) for one, other in pairs)
        _, path, kept = expected.accepted(tree)
        theirs.commit([path], [kept])
        ours.commit([path], [path])
        tokens += [*(int(t) for t in tree.tokens[path[1:]]), expected.prediction()]
        longest = max(longest, len(path))
    assert tokens[: len(truth)] == truth[: len(tokens)]
    assert longest > 2
    return logits, guesses, bool(equal)


def check(pair, **how):
    logits, guesses, equal = differences(pair, **how)
    assert equal
    assert max(logits, guesses) <= BOUND


@pytest.mark.parametrize("kind", ["lossless", "conditioned", "bare", "shared"])
def test_a_package_computes_what_the_engine_does(kind, request):
    pair = request.getfixturevalue(kind)
    check(pair)
    if kind == "shared":
        check(pair, adapter="other", seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_packages_of_other_kinds_do(name, tmp_path):
    check(Pair(tmp_path / "x.mlpackage", CASES[name]))


# Negative controls: what is wrong shows as at least a hundred times the bound ---------------------


def test_what_is_wrong_shows(shared):
    """A commit left out, and the functions of the other adapter."""

    def forget(ours):
        ours._order = ours._in_order

    logits, _, _ = differences(shared, before=forget)
    assert logits > 100 * BOUND
    logits, guesses, _ = differences(shared, ours=shared.package_decoder("other"))
    assert min(logits, guesses) > 100 * BOUND


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
