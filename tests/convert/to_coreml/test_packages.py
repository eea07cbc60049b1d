"""A saved package computes what the MLX engine computes on the weights that the package holds."""

from dataclasses import replace

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
    by_engine,
    plain_text,
    random_model,
)
from mlx_lm.sample_utils import make_logits_processors
from random_models import random_prompt, random_tree, relative_error
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.recordings import Recorder
from specstream_mlx.convert.to_coreml.weights import encode
from trees import Planned, fixed_trees

from specstream_mlx import DraftSettings, PromptCache, UserError, keyed_sampler
from specstream_mlx.drafting import best_first
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.request import Request

BOUND = 1e-4


def prompt_of(length, seed=0):
    return random_prompt(length, seed=seed, vocab_size=VOCAB_SIZE)


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
    prompt = prompt_of(21, seed)
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


# By the loop: the same tokens and trees in every call -------------------------------------------


class WithoutNoise(KeyedRule):
    """``keyed`` with the guesses of a package, which knows nothing of the noise."""

    strengths = (0.0,)


GREEDY = {}
KEYED = {"sampler": keyed_sampler(7), "verify": WithoutNoise}
PROCESSED = {"logits_processors": make_logits_processors({3: 2.0}, 1.3)}
PLAIN = {"logits_processors": None}


class MixedTrees:
    """Drafts what the streams guess, and in between some of the true continuation."""

    def __init__(self, truth, seed=0, size=SIZES.most_nodes - 1):
        self._left, self._rng, self._size = list(truth), np.random.default_rng(seed), size

    def accept(self, tokens):
        self._left = self._left[len(tokens) :]

    def finish(self):
        pass

    def grow(self, root, guesses, tested):
        true = tuple(self._left[: self._rng.integers(0, 5)])

        def children(path):
            found = guesses.after(path)[: SIZES.candidates]
            if path != true[: len(path)] or len(path) == len(true):
                return found
            token = true[len(path)]
            return [(token, -0.5), *((other, score) for other, score in found if other != token)]

        return best_first.tree_of(root, best_first.best_nodes(children, self._size))


def both(pair, request, *, seed=0, adapter="one", ours=None):
    """The steps of package and engine with drafts that are right as often as not."""
    theirs, ours = pair.decoder(adapter), ours or pair.package_decoder(adapter)
    plan_of = SETTINGS.plans(theirs.streams and theirs.streams.config)
    truth = plain_text(pair.decoder(adapter), request)
    planners = [Planned(MixedTrees(truth, seed), plan_of) for _ in range(2)]
    expected = by_engine(theirs, request, planners[0])
    found = list(ours.decode(ours.fitted(replace(request, drafting=planners[1]))))
    return found, expected


def assert_same_steps(found, expected):
    """Same tokens, and the same trees in every call."""
    assert [step.tokens for step in found] == [step.tokens for step in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("tokens", "parents", "depths"):
            assert getattr(ours.tree, name).tolist() == getattr(theirs.tree, name).tolist()


@pytest.mark.parametrize(
    ("kind", "adapter", "lengths"),
    [
        ("lossless", "one", (1, 9, 27)),
        ("shared", "one", (1, 27)),
        ("shared", "other", (9,)),
        ("conditioned", "one", (9,)),
    ],
)
def test_texts_and_trees(kind, adapter, lengths, request):
    """Several prompts, greedy and drawn."""
    pair = request.getfixturevalue(kind)
    for seed, length in enumerate(lengths):
        for how in (GREEDY, KEYED):
            one = Request(prompt_of(length, seed), max_tokens=14, **how)
            recorder = Recorder(pair.package)
            ours = pair.package_decoder(adapter, recorder)
            found, expected = both(pair, one, seed=seed, adapter=adapter, ours=ours)
            assert_same_steps(found, expected)
            assert max(len(step.tokens) for step in found) > 2
            # The smallest functions that hold the trees are called.
            sizes = [min(n for n in SIZES.nodes if n >= len(step.tree)) for step in found]
            assert set(sizes) == set(SIZES.nodes)
            names = [call["function"] for call in recorder.calls if "length" in call["inputs"]]
            step = "step" if how is GREEDY else "logits"
            chunks = -(-(length - 1) // SIZES.chunk)
            expected = ["prefill8"] * chunks + [f"{step}{size}" for size in sizes]
            assert names == [f"{adapter}_{name}" for name in expected]


def test_a_base_without_streams_drafts_by_lookup(bare):
    for settings in (DraftSettings(lookup=True, tree_size=7), DraftSettings(speculation=False)):
        request = Request(prompt_of(60), settings, max_tokens=12)
        decoder = bare.package_decoder()
        found = list(decoder.decode(decoder.fitted(request)))
        proposers = [make(Material(request.prompt)) for make in settings.makers]
        planner = fixed_trees(settings, proposers, streams=False)
        assert_same_steps(found, by_engine(bare.decoder(), request, planner))
        assert any(len(step.tree) > 1 for step in found) == bool(settings.makers)


def test_processors_see_the_path_of_each_node(lossless):
    request = Request(prompt_of(9), max_tokens=15, **PROCESSED)
    found, expected = both(lossless, request)
    assert_same_steps(found, expected)
    assert found[-1].tokens != plain_text(lossless.decoder(), replace(request, **PLAIN))[-1]


# Ends -------------------------------------------------------------------------------------------


def test_a_text_ends_where_the_context_does(lossless):
    decoder = lossless.package_decoder()
    for how in (GREEDY, KEYED):
        fitted = decoder.fitted(Request(prompt_of(SIZES.context - 12), **how))
        assert fitted.max_tokens == 13  # the last is not read any more
        found, expected = both(lossless, replace(fitted, drafting=None))
        assert_same_steps(found, expected)
        assert max(len(step.tree) for step in found[-2:]) > SIZES.nodes[0]
        assert sum(len(step.tokens) for step in found) >= 13
    with pytest.raises(UserError, match="97 tokens, the package's context holds 96"):
        decoder.fitted(Request(prompt_of(SIZES.context + 1)))


# One prompt after another ------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "how"), [("lossless", GREEDY), ("shared", KEYED)])
def test_a_prompt_after_a_text(kind, how, request):
    """What the last call accepted and no further call committed is read again."""
    pair = request.getfixturevalue(kind)
    recorder = Recorder(pair.package)
    ours, prompt, known = pair.package_decoder("one", recorder), prompt_of(11), 0
    for turn in range(3):
        recorder.calls.clear()
        one = Request(prompt, max_tokens=7 + turn, **how)
        found, expected = both(pair, one, seed=turn, ours=ours)
        assert_same_steps(found, expected)
        assert recorder.calls[0]["function"] == f"one_prefill{SIZES.chunk}"
        assert recorder.calls[0]["inputs"]["length"] == known
        settled = [token for step in found[:-1] for token in step.tokens]
        known = len(prompt) - 1 + (len(settled) if kind == "lossless" else 0)
        prompt = [*prompt, *settled, *found[-1].tokens, *prompt_of(9, seed=turn + 5)]


def test_another_prompt_goes_back(lossless):
    """Also where a text was broken off, with a call under way."""
    ours, prompt = lossless.package_decoder(), prompt_of(20)
    request = ours.fitted(Request(prompt, max_tokens=30))
    text = ours.decode(request)
    for _ in range(3):
        next(text)
    text.close()
    for changed in (prompt[:13] + prompt_of(4, seed=1), prompt, prompt[:5]):
        found, expected = both(lossless, Request(changed, max_tokens=8), ours=ours)
        assert_same_steps(found, expected)


# What a package cannot do -----------------------------------------------------------------------


def test_refused_requests(lossless):
    ours = lossless.package_decoder()
    for fields, sentence in (
        ({"prompt": [VOCAB_SIZE]}, "holds token 97, the model's are 0 to 96"),
        ({"sampler": keyed_sampler(1), "verify": "rejection"}, "verify is 'rejection', expected"),
        ({"prompt_cache": PromptCache()}, "a prompt cache or kv_bits was given"),
        ({"drafting": DraftSettings(max_nodes=3)}, "max_nodes is given, expected none"),
        ({"drafting": DraftSettings(num_streams=4)}, "num_streams is 4, the adapter has 3"),
    ):
        with pytest.raises(UserError, match=sentence):
            ours.fitted(Request(**{"prompt": [1], **fields}))
    # Without functions that return logits nothing is drawn.
    ours = PackageDecoder(replace(lossless.contents, sampling=False), lossless.package)
    for how in (KEYED, PROCESSED):
        with pytest.raises(UserError, match=r"no functions that return logits.*--sampling"):
            ours.fitted(Request([1], **how))
    ours.fitted(Request([1]))
