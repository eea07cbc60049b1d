"""Decoding at a temperature with the whole runtime: text is plain decoding's or the target's."""

from collections import Counter
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
import random_models
from distribution import ALPHA, CERTAIN, LENGTH, PROMPT, Table, joint, p_value, plain
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from random_models import (
    TREES,
    VOCAB_SIZE,
    plain_tokens,
    random_prompt,
    request,
    speculative_model,
)
from trees import fixed_trees

from specstream_mlx import Sampling, UserError, keyed_sampler
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.guess import StreamGuesses
from specstream_mlx.engine.noise import Noise
from specstream_mlx.engine.plan import root_only
from specstream_mlx.engine.rows import TreeNodes
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.engine.verify.rule import PathEnd
from specstream_mlx.generation.batch import decode

COUNT = 24


def tokens_of(model, prompt, count, drafts, **options):
    tokens, calls = [], 0
    for step in decode(model, request(prompt, DraftSettings(**drafts), **options)):
        tokens, calls = tokens + step.tokens, calls + 1
        if len(tokens) >= count:
            return tokens[:count], len(tokens) / calls


def test_the_noise_helps_to_draft():
    """Random streams know little, but a random target draws what the noise says."""

    class Blind(KeyedRule):
        strengths = (0.0,)

    accepted = {}
    for rule in (KeyedRule, Blind):
        runs = [
            tokens_of(speculative_model(), random_prompt(9, seed=seed), 30, {},
                      sampler=keyed_sampler(seed), verify=rule)
            for seed in range(3)
        ]  # fmt: skip
        accepted[rule] = [found for found, _ in runs], np.mean([length for _, length in runs])
    assert accepted[KeyedRule][0] == accepted[Blind][0]
    assert accepted[KeyedRule][1] > accepted[Blind][1] + 0.1


def test_a_sampler_counts_the_calls_of_mlx_lm():
    model, prompt = speculative_model(), random_prompt(9)
    sampler = keyed_sampler(5)
    expected = plain_tokens(model.model, prompt, COUNT, sampler=sampler)
    assert sampler.drawn > COUNT - 1
    assert plain_tokens(model.model, prompt, COUNT, sampler=sampler) != expected
    for _ in range(2):
        assert tokens_of(model, prompt, COUNT, {}, sampler=sampler)[0] == expected
    assert keyed_sampler(1, 0.0)(mx.array([[0.1, 0.7, 0.2]])).tolist() == [1]
    with pytest.raises(UserError, match="given 2 rows, expected one"):
        keyed_sampler(5)(mx.zeros((2, 4)))
    with pytest.raises(UserError, match="sampler and top_p, expected one of them"):
        keyed_sampler(5, sampler=make_sampler(temp=0.5), top_p=0.9)


TABLE = Table(vocab_size=3)
SAMPLER = {"temp": 1.1, "top_p": 0.97}
PENALTY = {"repetition_penalty": 1.3, "repetition_context_size": 2}
SEEDS = 600
TREE = DraftSettings(tree_width=2, tree_size=5)


def drawn_text(seed, rule=KeyedRule, tree_of=TREE):
    """The first tokens under a seed; ``None`` for trees drafts nothing."""
    rule = rule(keyed_sampler(seed, **SAMPLER), make_logits_processors(**PENALTY), PROMPT)
    tree, text = root_only(PROMPT[-1]), ()
    while len(text) < LENGTH:
        paths = [(*text, *tree.tokens[tree.path(node)[1:]].tolist()) for node in range(len(tree))]
        logits = mx.array(np.stack([TABLE.logits(path) for path in paths]))
        arrays = map(mx.array, (tree.tokens, tree.parents, tree.ancestors, tree.depths))
        last, predictions, _ = rule.verify(tree, TreeNodes(*arrays), logits)
        node = last.item()
        end = (*paths[node], predictions[node].item())
        streams, depth = mx.array(TABLE.stream_logits(end)), mx.array(int(tree.depths[node]))
        guesses = rule.rank_guesses(streams, 3, PathEnd(tree, depth), None, None)
        rule.commit(end[len(text) :])
        text, tree = end, root_only(end[-1])
        if tree_of is not None:
            tree = fixed_trees(tree_of).grow(end[-1], StreamGuesses(*map(np.array, guesses)))
    return text[:LENGTH]


@cache
def target():
    return joint(plain(TABLE, Sampling(**SAMPLER), PENALTY), TABLE.vocab_size)


def test_over_seeds_the_first_four_tokens_are_distributed_as_the_targets():
    texts = [drawn_text(seed) for seed in range(SEEDS)]
    assert p_value(Counter(texts), target()) > ALPHA
    assert texts[:100] == [drawn_text(seed, tree_of=None) for seed in range(100)]


def test_noise_that_is_used_for_two_positions_is_noticed(monkeypatch):
    number = Noise.number
    monkeypatch.setattr(Noise, "number", lambda self, _, use="token": number(self, 0, use))
    texts = Counter(drawn_text(seed, tree_of=None) for seed in range(SEEDS))
    assert p_value(texts, target()) < CERTAIN


class WrongDepth(KeyedRule):
    """Draws behind a draft with the noise of the root."""

    def predictions(self, tree, kept, logits):
        return mx.concatenate([self._token(logits[row : row + 1]) for row in range(len(logits))])


def test_noise_of_another_depth_is_noticed():
    texts = [drawn_text(seed, WrongDepth) for seed in range(SEEDS)]
    assert p_value(Counter(texts), target()) < CERTAIN


BINARY = TREES["binary"]


def test_three_tokens_of_rejection_are_distributed_as_plain_samples(monkeypatch, draws=250):
    """With the whole runtime; the large tests, with planted wrong rules: test_distribution."""
    monkeypatch.setattr(random_models, "VOCAB_SIZE", 3)  # even random streams are often right
    model, prompt, sampler = speculative_model(), random_prompt(5, vocab_size=3), Sampling(temp=3.0)
    options = {"sampler": sampler, "verify": "rejection"}
    mx.random.seed(0)
    texts = [tuple(tokens_of(model, prompt, 3, BINARY, **options)[0]) for _ in range(draws)]

    def log_probs_after(text):
        logits = model.model(mx.array([[*prompt, *text]]))[:, -1]
        return np.array(sampler.log_probs(logits))[0].astype(np.float64)

    assert p_value(Counter(texts), joint(log_probs_after, 3, length=3)) > ALPHA


@pytest.mark.parametrize("verify", ["keyed", "rejection", "typical"])
def test_a_seed_repeats_a_run(verify):
    model, prompt = speculative_model(), random_prompt(5)
    texts = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        sampler = Sampling(temp=1.5) if verify == "rejection" else keyed_sampler(seed, 1.5)
        options = {"sampler": sampler, "verify": verify}
        texts.append(tokens_of(model, prompt, 20, BINARY, **options)[0])
    assert texts[0] == texts[1] != texts[2]


def test_a_token_that_xtc_spares_must_be_one_of_the_models():
    spared = {"xtc_threshold": 0.1, "xtc_special_tokens": (3, VOCAB_SIZE)}
    Sampling(temp=1.0, **spared).check(VOCAB_SIZE)  # without a probability nothing is spared
    with pytest.raises(UserError, match="hold token 97, the model's are 0 to 96"):
        Sampling(temp=1.0, xtc_probability=0.5, **spared).check(VOCAB_SIZE)


def test_a_seed_means_the_same_in_every_version(monkeypatch):
    uses = ((0, "token"), (1, "token"), (0, "coin"))
    found = [Noise(7).number(*use) for use in uses]
    assert found == [0xB8B4C2977EABCE45, 0x591A5CA9608CC826, 0xA65305FD338EC8FE]
    expected = [1.9693776, 1.307017, -0.16295965]
    assert np.array(Noise(7).gumbel(0, 1, 3))[0] == pytest.approx(expected, rel=1e-5)
    assert np.array(Noise(0).coins(0, 2000)).mean() == pytest.approx(0.5, abs=0.03)
    for seed in (-1, 2**64, 1.5, None):
        with pytest.raises(UserError, match="expected an integer of at least 0 and below"):
            Noise(seed)
    # MLX's own noise is -inf where its uniform number is 0, and then a lone candidate would lose.
    monkeypatch.setattr(mx.random, "gumbel", lambda shape, **_: mx.full(shape, -mx.inf))
    assert np.isfinite(np.array(Noise(0).gumbel(0, 1, 3))).all()


def test_top_p_0_takes_the_likeliest_token():
    """In Python, where ``make_sampler`` has no filter; next to 0 mlx_lm's would drop all tokens."""
    log_probs = mx.random.normal((6, 50), key=mx.random.key(1))
    likeliest = mx.argmax(log_probs, axis=-1).tolist()
    for top_p in (0, 0.0, 5e-324, 1e-40, 1e-9):
        sampling = Sampling(temp=1.0, top_p=top_p)
        assert sampling(log_probs).tolist() == likeliest
        for row, expected in enumerate(likeliest):
            drawn = keyed_sampler(3, temp=2.0, top_p=top_p)(log_probs[row : row + 1])
            assert drawn.item() == expected
    assert Sampling(temp=1.0).top_p == 1
    assert Sampling(temp=1.0, top_p=1)(log_probs).tolist() != likeliest
