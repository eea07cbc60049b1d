"""A package decodes by the loop as the engine does: the same tokens and trees in every call."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_packages import SETTINGS, SIZES, VOCAB_SIZE, by_engine, plain_text
from mlx_lm.sample_utils import make_logits_processors
from random_models import random_prompt
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.recordings import Recorder
from trees import Planned, fixed_trees

from specstream_mlx import DraftSettings, PromptCache, UserError, keyed_sampler
from specstream_mlx.drafting import best_first
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.request import Request


class WithoutNoise(KeyedRule):
    """``keyed`` with the guesses of a package, which knows nothing of the noise."""

    strengths = (0.0,)


GREEDY = {}
KEYED = {"sampler": keyed_sampler(7), "verify": WithoutNoise}
PROCESSED = {"logits_processors": make_logits_processors({3: 2.0}, 1.3)}
PLAIN = {"logits_processors": None}


def prompt_of(length, seed=0):
    return random_prompt(length, seed=seed, vocab_size=VOCAB_SIZE)


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
