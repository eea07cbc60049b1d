"""Random cases of keyed sampling: whatever is combined, the text is plain decoding's own."""

import random
import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import pytest
from architecture_models import pair
from draft_heads import HEADS, model_with_head
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from random_models import (
    STREAMS,
    TREES,
    VOCAB_SIZE,
    TrueTrees,
    plain_tokens,
    random_prompt,
    speculative_model,
    written,
)
from trees import KINDS, AnyDrafting, Planned

from benchmarks.rivals.lookahead import Lookahead
from benchmarks.rivals.pld import PromptLookup
from benchmarks.rivals.suffix import Suffix
from specstream_mlx import DraftSettings, PromptCache, keyed_sampler
from specstream_mlx.drafting.settings import Proposers
from specstream_mlx.engine import guess as guessing
from specstream_mlx.engine import step as engine_step

MODELS = [
    ("grouped heads, tied", "lossless", "adapter"),
    ("one kv head, untied", "shared", "base MLP"),
    ("full heads, biases", "lossless", "base + adapter, linear"),
    ("llama3 rope", "shared", "every layer"),
    ("traditional linear rope, untied", "lossless", "value rotation"),
    ("sliding windows", "lossless", "adapter"),
    ("sliding windows", "shared", "adapter"),
]
MODELS += [(base, mode, "conditioned head") for base, mode, _ in MODELS[:6]]
MODELS += [
    ("grouped heads, tied", "lossless", "one stream"),
    ("full heads, biases", "lossless", "few keys"),
    ("llama3 rope", "shared", "draft vocabulary"),
    ("one kv head, untied", "lossless", "conditioned head, draft vocabulary"),
]
EVERY = range(len(MODELS))
CONDITIONED = [number for number, model in enumerate(MODELS) if "conditioned" in model[2]]
FAMILIES = ["Mistral 0.3", "Phi-2", "Phi-3 mini 128k, longrope", "Qwen2.5, yarn", "Qwen3 8B"]
FAMILIES += ["Gemma 3", "OPT"]
DRAFTS = [*(DraftSettings(**fields) for fields in TREES.values()), *KINDS]
DRAFTS.append(DraftSettings(tree_width=6, tree_size=8))


@cache
def model_of(number):
    """A model of ``MODELS``, or by name one with a draft head of ``HEADS`` or of ``FAMILIES``."""
    if number in HEADS:
        return model_with_head(number, Path(tempfile.mkdtemp()) / "head")[0]
    if number in FAMILIES:
        return pair(number).model
    base, mode, streams = MODELS[number]
    return speculative_model(base, mode=mode, seed=number, **STREAMS[streams])


def random_sampler(rng):
    """Makes the same sampler again and again; ``None`` at temperature 0."""
    temp, seed = rng.choice([0, 0.5, 1.0]), rng.choice([rng.randrange(100), rng.getrandbits(64)])
    filters = {"top_p": rng.choice([0.5, 0.8, 0.95]), "min_p": rng.choice([0.02, 0.2])}
    filters |= {"top_k": rng.choice([2, 10, 40]), "xtc_probability": 0.5}
    filters |= {"xtc_threshold": rng.choice([0.05, 0.1]), "xtc_special_tokens": (3, 4)}
    if temp == 0:
        return lambda: None
    if rng.random() < 0.1:  # another's function
        function = make_sampler(1.0, 0.9, xtc_probability=0.5, xtc_threshold=0.1)
        return lambda: keyed_sampler(seed, sampler=function)
    chosen = {name: value for name, value in filters.items() if rng.random() < 0.4}
    return lambda: keyed_sampler(seed, temp, **chosen)


def random_processors(rng):
    penalties = {"repetition_penalty": rng.choice([0.8, 1.3]), "frequency_penalty": 0.3}
    penalties["presence_penalty"] = 0.5
    penalties["logit_bias"] = {rng.randrange(VOCAB_SIZE): rng.choice([-3.0, 3.0])}
    chosen = {name: value for name, value in penalties.items() if rng.random() < 0.3}
    return make_logits_processors(**chosen)


def plain(model, prompt, count, sampler, processors=()):
    """Plain decoding: mlx_lm's in lossless mode, else one token a step, streams beside it."""
    options = {"sampler": sampler, "logits_processors": processors}
    if model.mode == "lossless":
        return plain_tokens(model.model, prompt, count, **options)
    return written(model, prompt, count, DraftSettings(speculation=False), **options)[:count]


def check_one(rng, model, random_drafting):
    """One text with a random drafting; it may go on from an earlier turn's rows."""
    prompt = random_prompt(rng.randint(1, 40), seed=rng.randrange(999)) * rng.choice([1, 1, 2, 5])
    make, processors, count = random_sampler(rng), random_processors(rng), rng.randint(1, 30)
    expected = plain(model, prompt, count, make(), processors)
    options = {"sampler": make(), "logits_processors": processors}
    options["prefill_step_size"] = rng.choice([1, 3, 64, 2048])
    drafting = random_drafting(rng, model, prompt, expected)
    if rng.random() < 0.3:
        cache = options["prompt_cache"] = PromptCache()
        before = prompt[: rng.randint(1, len(prompt))]
        written(model, before, rng.randint(1, 9), DRAFTS[4], prompt_cache=cache, sampler=make())
    assert written(model, prompt, count, drafting, **options)[:count] == expected, drafting


def any_drafting(rng, model, prompt, expected):
    """Settings, the rule, settings that change, or trees that know the text."""
    settings = rng.choice(DRAFTS)
    way = rng.choice(["settings", "rule", "changing", "knowing"])
    if way == "changing":
        return AnyDrafting(model, prompt, rng.randrange(999), KINDS)
    if way == "knowing":
        drafter = TrueTrees(expected, rng.randrange(999), width=2)
        return Planned(drafter, settings.plans(model.streams and model.streams.config))
    return None if way == "rule" else settings


def check_case(number, models):
    rng = random.Random(number)
    check_one(rng, model_of(rng.choice(models)), any_drafting)


def with_proposers(rng, model, prompt, expected):
    """Proposers beside the streams, by the rule or in a tree of any shape."""
    sizes = {"columns": rng.randint(1, 5), "ngram": rng.randint(2, 5), "most": rng.randint(1, 4)}
    makers = [PromptLookup, Suffix, partial(Lookahead, **sizes)]
    fields = {"lookup": rng.choice([True, False])}
    fields["proposers"] = rng.sample(makers, rng.randint(0, len(makers)))
    if rng.random() < 0.5:
        draft = model_of(rng.choice(EVERY))
        fields["draft_model"] = rng.choice([draft, draft.model])
        fields["num_draft_tokens"] = rng.randint(1, 8)
    if rng.random() < 0.4:
        return Proposers(**fields)
    settings = DraftSettings(**rng.choice(list(TREES.values())) | fields)
    if not model.streams or (settings.num_streams == 0 and model.mode == "lossless"):
        return replace(settings, max_nodes=None, prune_threshold=None)
    return settings


def check_proposers(number, models):
    check_one(random.Random(number), model_of(models[number % len(models)]), with_proposers)


def check_shortlists(number, models):
    """Conditioned heads score a few tokens behind each path, as on large vocabularies."""
    with patch.object(engine_step, "WHOLE_HEAD", 0), patch.object(guessing, "SHORTLIST", 7):
        check_case(number, models)


CASES = [
    (check_case, EVERY, 0, 48),
    (check_shortlists, CONDITIONED, 3000, 20),
    (check_proposers, EVERY, 5000, 24),
    (check_proposers, list(HEADS), 7000, 12),
    (check_proposers, FAMILIES, 9000, 4),
]
MORE = [
    (check_case, EVERY, 1000, 120),
    (check_case, CONDITIONED, 2000, 120),
    (check_shortlists, CONDITIONED, 4000, 60),
    (check_proposers, EVERY, 5100, 240),
    (check_proposers, list(HEADS), 7100, 240),
    (check_proposers, FAMILIES, 9100, 60),
]
TIES = {5146}
"""Cases in which two tokens' logits lie 2e-6 apart, so the shape of a pass decides between them."""
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in MORE]


@pytest.mark.parametrize(("check", "models", "first", "count"), CASES + SLOW)
def test_random_cases(check, models, first, count):
    """Beside streams, beside draft heads, and on other families; with the slow ones 900 cases."""
    for number in range(first, first + count):
        if number not in TIES:
            check(number, models)
