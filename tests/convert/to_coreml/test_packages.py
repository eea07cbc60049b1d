"""A saved package decodes as the MLX engine does on the weights that it holds, call by call."""

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
from random_models import TrueTrees, random_prompt, relative_error
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.recordings import Recorder
from specstream_mlx.convert.to_coreml.weights import encode
from trees import Planned

from specstream_mlx import DraftSettings, PromptCache, UserError, keyed_sampler
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.generation.request import Request

BOUND = 1e-4


class WithoutNoise(KeyedRule):
    """``keyed`` with the guesses of a package, which knows nothing of the noise."""

    strengths = (0.0,)


GREEDY = {}
KEYED = {"sampler": keyed_sampler(7), "verify": WithoutNoise}


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
    assert [step.tokens for step in found] == [step.tokens for step in expected]
    for step, other in zip(found, expected, strict=True):
        for name in ("tokens", "parents", "depths"):
            assert getattr(step.tree, name).tolist() == getattr(other.tree, name).tolist()
    for result, other in zip(*sides, strict=True):
        assert mx.array_equal(result.predictions, other.predictions)
        assert mx.array_equal(result.last, other.last)
        if result.logits is not None:
            assert relative_error(result.logits, other.logits) <= BOUND
        guesses, others = result.streams, other.streams
        if guesses is not None:
            assert mx.array_equal(guesses.candidates, others.candidates)
            assert relative_error(guesses.log_probs, others.log_probs) <= BOUND
            if others.parents is not None:
                assert mx.array_equal(guesses.parents, others.parents)
    return found


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


def test_weights_are_written_once_as_they_were_encoded(shared):
    """For all functions of both adapters."""
    (file,) = shared.path.rglob("weight.bin")
    content, held = file.read_bytes(), shared.package.weights("one_step5")
    for number, layer in enumerate(random_model(shared.case).layers):
        groups = encode(layer.mlp.gate_proj)
        assert content.count(groups.q.tobytes()) == 1
        scale, offset = (np.repeat(x.astype(float), 32, 1) for x in (groups.scale, groups.offset))
        found = held[f"model_layers_{number}_mlp_gate_proj"]
        assert found == pytest.approx(scale * (groups.q - offset), rel=1e-6)


def test_processors_see_the_path_of_each_node(lossless):
    processors = make_logits_processors({3: 2.0}, 1.3)
    request = Request(random_prompt(9), max_tokens=15, logits_processors=processors)
    found, plain = compared(lossless, request), replace(request, logits_processors=None)
    assert found[-1].tokens != plain_text(lossless.decoder(), plain)[-1]


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


def test_refused_requests(lossless):
    ours = lossless.package_decoder()
    for fields, sentence in (
        ({"prompt": [VOCAB_SIZE]}, "holds token 97, the model's are 0 to 96"),
        ({"prompt_cache": PromptCache()}, "a prompt cache or kv_bits was given"),
        ({"drafting": DraftSettings(max_nodes=3)}, "max_nodes is given, expected none"),
        ({"drafting": DraftSettings(num_streams=4)}, "num_streams is 4, the adapter has 3"),
    ):
        with pytest.raises(UserError, match=sentence):
            ours.fitted(Request(**{"prompt": [1], **fields}))
    # Without functions that return logits nothing is drawn.
    ours = PackageDecoder(replace(lossless.contents, sampling=False), lossless.package)
    with pytest.raises(UserError, match=r"no functions that return logits.*--sampling"):
        ours.fitted(Request([1], **KEYED))
    ours.fitted(Request([1]))
