"""Decoding at a temperature, with the whole runtime: distributions, seeds, refusals."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
import random_models
from distribution import ALPHA, CERTAIN, joint, p_value
from mlx_lm.sample_utils import make_logits_processors
from random_models import (
    VOCAB_SIZE,
    assert_close,
    random_prompt,
    request,
    speculative_model,
)

from specstream_mlx import Sampling, UserError, keyed_sampler
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.scheduler import decode

BINARY = {"tree_width": 2, "tree_size": None}
BEST_FIRST = {"tree_width": 3, "tree_size": 8}
PRUNED = {"tree_width": 3, "tree_size": 9, "max_nodes": 5, "prune_threshold": 0.003}
PROCESSORS = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {0: 0.5, 2: -0.5}}


def sampled(model, prompt, count, tree, lengths=None, **options):
    """Tokens and, for each, the (vocab,) logits that it was drawn from.

    ``lengths``, a list, is given the tokens of each step.
    """
    tokens, logits = [], []
    lengths = [] if lengths is None else lengths
    for step in decode(model, request(prompt, DraftSettings(**tree), **options)):
        tokens += step.tokens
        lengths.append(len(step.tokens))
        logits += [step.result.logits[row] for row in step.rows]
        if len(tokens) >= count:
            return tokens, logits


@pytest.fixture
def three_tokens(monkeypatch):
    """A vocabulary of three, so that even random streams are often right."""
    monkeypatch.setattr(random_models, "VOCAB_SIZE", 3)


RULES = {
    "keyed": ("keyed", BEST_FIRST),
    "keyed, pruned": ("keyed", PRUNED),
    "keyed, hybrid": ("keyed", BEST_FIRST | {"lookup": True}),
    "rejection": ("rejection", BINARY),
}


@pytest.mark.usefixtures("three_tokens")
@pytest.mark.parametrize(("verify", "tree"), RULES.values(), ids=RULES)
def test_every_token_is_drawn_from_the_processed_target(verify, tree):
    """Behind accepted drafts, too, each with its own history before the processors."""
    model, prompt = speculative_model(), random_prompt(7, vocab_size=3)
    sampler, processors = Sampling(temp=1.5, top_k=2), make_logits_processors(**PROCESSORS)
    options = {"sampler": sampler, "logits_processors": processors, "verify": verify}
    mx.random.seed(0)
    lengths = []
    tokens, logits = sampled(model, prompt, 40, tree, lengths=lengths, **options)
    assert np.mean(lengths) > 1.2, "drafts were accepted"
    plain = model.model(mx.array([[*prompt, *tokens]]))[0]
    for index, token in enumerate(tokens):
        text = mx.array([*prompt, *tokens[:index]])
        expected = plain[len(prompt) - 1 + index][None]
        for processor in processors:
            expected = processor(text, expected)
        assert_close(logits[index], expected[0])
        assert sampler.log_probs(expected)[0, token].item() > -np.inf


@pytest.mark.usefixtures("three_tokens")
def test_three_tokens_of_rejection_are_distributed_as_plain_samples(draws=250):
    """With the whole runtime; the large tests, with planted wrong rules: test_distribution."""
    model, prompt, sampler = speculative_model(), random_prompt(5, vocab_size=3), Sampling(temp=3.0)
    options = {"sampler": sampler, "verify": "rejection"}
    mx.random.seed(0)
    texts = [tuple(sampled(model, prompt, 3, BINARY, **options)[0][:3]) for _ in range(draws)]

    def log_probs_after(text):
        logits = model.model(mx.array([[*prompt, *text]]))[:, -1]
        return np.array(sampler.log_probs(logits))[0].astype(np.float64)

    assert p_value(Counter(texts), joint(log_probs_after, 3, length=3)) > ALPHA
    even = joint(lambda text: np.log(np.full(3, 1 / 3)), 3, length=3)
    assert p_value(Counter(texts), even) < CERTAIN, "a difference is seen"


@pytest.mark.parametrize(
    ("verify", "keyed"), [("keyed", True), ("rejection", False), ("typical", True)]
)
def test_a_seed_repeats_a_run(verify, keyed):
    model, prompt = speculative_model(), random_prompt(5)
    texts = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        sampler = keyed_sampler(seed, 1.5) if keyed else Sampling(temp=1.5)
        options = {"sampler": sampler, "verify": verify}
        texts.append(sampled(model, prompt, 20, BINARY, **options)[0])
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("token", [VOCAB_SIZE, -1])
def test_a_token_that_xtc_spares_must_be_one_of_the_models(token):
    """A tokenizer's end token may be beyond the vocabulary."""
    spared = {"xtc_threshold": 0.1, "xtc_special_tokens": (3, token)}
    Sampling(temp=1.0, **spared).check(VOCAB_SIZE)  # without a probability nothing is spared
    with pytest.raises(UserError, match=f"hold token {token}, the model's are 0 to 96"):
        Sampling(temp=1.0, xtc_probability=0.5, **spared).check(VOCAB_SIZE)
