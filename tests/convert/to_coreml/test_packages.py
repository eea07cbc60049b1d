"""A saved package decodes as the MLX engine does on the weights that it holds, call by call."""

from dataclasses import replace

import mlx.core as mx
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
from random_models import TrueTrees, random_prompt, relative_error
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.recordings import Recorder
from specstream_mlx.convert.to_coreml.weights import encode
from trees import Planned

from specstream_mlx import DraftSettings, PromptCache, UserError, keyed_sampler
from specstream_mlx.drafting.fixed import FixedPlanner
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.request import Request

BOUND = 1e-4


class WithoutNoise(KeyedRule):
    """``keyed`` with the guesses of a package, which knows nothing of the noise."""

    strengths = (0.0,)


GREEDY = {}
KEYED = {"sampler": keyed_sampler(7), "verify": WithoutNoise}
PROCESSED = {"logits_processors": make_logits_processors({3: 2.0}, 1.3)}
PLAIN = {"logits_processors": None}


class SmallTrees(TrueTrees):
    """As large as a package's largest."""

    def grow(self, root, *_):
        tree = super().grow(root)
        parts = tree.tokens, tree.parents, tree.depths, tree.log_probs
        return DraftTree(*(part[: SIZES.most_nodes] for part in parts))


def results_of(decoder):
    """A list to which each of a decoder's steps adds its result."""
    results, step = [], decoder.step

    def recorded(plans, rules):
        results.extend(step(plans, rules))
        return results[-1:]

    decoder.step = recorded
    return results


def compared(pair, request, *, seed=0, adapter="one", ours=None):
    """The steps of a package whose drafts are right as often as not: the engine's, call by call."""
    theirs, ours = pair.decoder(adapter), ours or pair.package_decoder(adapter)
    plan_of = SETTINGS.plans(theirs.streams and theirs.streams.config)
    truth = plain_text(pair.decoder(adapter), request)
    planners = [Planned(SmallTrees(truth, seed, width=2), plan_of) for _ in range(2)]
    sides = results_of(ours), results_of(theirs)
    expected = by_engine(theirs, request, planners[0])
    found = list(ours.decode(ours.fitted(replace(request, drafting=planners[1]))))
    assert_same_steps(found, expected)
    for result, other in zip(*sides, strict=True):
        assert mx.array_equal(result.predictions, other.predictions)
        assert mx.array_equal(result.last, other.last)
        if result.logits is not None:
            assert relative_error(result.logits, other.logits) <= BOUND
        if result.streams is not None:
            assert_same_guesses(result.streams, other.streams)
    return found


def assert_same_guesses(found, expected):
    assert mx.array_equal(found.candidates, expected.candidates)
    assert relative_error(found.log_probs, expected.log_probs) <= BOUND
    if expected.parents is not None:
        assert mx.array_equal(found.parents, expected.parents)


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
            one = Request(random_prompt(length, seed=seed), max_tokens=14, **how)
            recorder = Recorder(pair.package)
            ours = pair.package_decoder(adapter, recorder)
            found = compared(pair, one, seed=seed, adapter=adapter, ours=ours)
            assert max(len(step.tokens) for step in found) > 2
            # The smallest functions that hold the trees are called.
            sizes = [min(n for n in SIZES.nodes if n >= len(step.tree)) for step in found]
            assert set(sizes) == set(SIZES.nodes)
            names = [call["function"] for call in recorder.calls if "length" in call["inputs"]]
            step = "step" if how is GREEDY else "logits"
            chunks = -(-(length - 1) // SIZES.chunk)
            expected = ["prefill8"] * chunks + [f"{step}{size}" for size in sizes]
            assert names == [f"{adapter}_{name}" for name in expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_packages_of_other_kinds_do(name, tmp_path):
    pair = Pair(tmp_path / "x.mlpackage", CASES[name])
    for how in (GREEDY, KEYED):
        compared(pair, Request(random_prompt(21), max_tokens=18, **how))


def test_what_is_wrong_shows(shared):
    """The functions of the other adapter, and a commit left out."""
    request, ours = Request(random_prompt(21), max_tokens=14), shared.package_decoder("one")
    own = ours.commit

    def forget(paths, kept):
        own(paths, kept)
        ours._order = ours._in_order

    ours.commit = forget
    for wrong in (ours, shared.package_decoder("other")):
        with pytest.raises(AssertionError):
            compared(shared, request, ours=wrong)


def test_weights_are_written_once(shared):
    """For all functions of both adapters."""
    (file,) = shared.path.rglob("weight.bin")
    content = file.read_bytes()
    for layer in random_model(shared.case).layers:
        assert content.count(encode(layer.mlp.gate_proj).q.tobytes()) == 1


def test_trees_are_those_that_settings_plan(bare, lossless):
    for pair, settings in (
        (lossless, DraftSettings(tree_size=7)),
        (bare, DraftSettings(lookup=True, tree_size=7)),
        (bare, DraftSettings(speculation=False)),
    ):
        ours, theirs = pair.package_decoder(), pair.decoder()
        request = ours.fitted(Request(random_prompt(60), settings, max_tokens=12))
        plan_of = request.drafting.plans(theirs.streams and theirs.streams.config)
        proposers = [make(Material(request.prompt)) for make in settings.makers]
        planner = FixedPlanner(request.drafting, plan_of, theirs.streams is not None, proposers)
        found = list(ours.decode(request))
        assert_same_steps(found, by_engine(theirs, request, planner))
        assert any(len(step.tree) > 1 for step in found) == settings.speculation


def test_processors_see_the_path_of_each_node(lossless):
    request = Request(random_prompt(9), max_tokens=15, **PROCESSED)
    found = compared(lossless, request)
    assert found[-1].tokens != plain_text(lossless.decoder(), replace(request, **PLAIN))[-1]


# Ends -------------------------------------------------------------------------------------------


def test_a_text_ends_where_the_context_does(lossless):
    decoder = lossless.package_decoder()
    for how in (GREEDY, KEYED):
        fitted = decoder.fitted(Request(random_prompt(SIZES.context - 12), **how))
        assert fitted.max_tokens == 13  # the last is not read any more
        found = compared(lossless, replace(fitted, drafting=None))
        assert max(len(step.tree) for step in found[-2:]) > SIZES.nodes[0]
        assert sum(len(step.tokens) for step in found) >= 13
    with pytest.raises(UserError, match="97 tokens, the package's context holds 96"):
        decoder.fitted(Request(random_prompt(SIZES.context + 1)))


# One prompt after another ------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "how"), [("lossless", GREEDY), ("shared", KEYED)])
def test_a_prompt_after_a_text(kind, how, request):
    """What the last call accepted and no further call committed is read again."""
    pair = request.getfixturevalue(kind)
    recorder = Recorder(pair.package)
    ours, prompt, known = pair.package_decoder("one", recorder), random_prompt(11), 0
    for turn in range(3):
        recorder.calls.clear()
        one = Request(prompt, max_tokens=7 + turn, **how)
        found = compared(pair, one, seed=turn, ours=ours)
        assert recorder.calls[0]["function"] == f"one_prefill{SIZES.chunk}"
        assert recorder.calls[0]["inputs"]["length"] == known
        settled = [token for step in found[:-1] for token in step.tokens]
        known = len(prompt) - 1 + (len(settled) if kind == "lossless" else 0)
        prompt = [*prompt, *settled, *found[-1].tokens, *random_prompt(9, seed=turn + 5)]


def test_another_prompt_goes_back(lossless):
    """Also where a text was broken off, with a call under way."""
    ours, prompt = lossless.package_decoder(), random_prompt(20)
    request = ours.fitted(Request(prompt, max_tokens=30))
    text = ours.decode(request)
    for _ in range(3):
        next(text)
    text.close()
    for changed in (prompt[:13] + random_prompt(4, seed=1), prompt, prompt[:5]):
        compared(lossless, Request(changed, max_tokens=8), ours=ours)


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
