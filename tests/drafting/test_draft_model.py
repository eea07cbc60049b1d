"""Drafts of a second model: what it has read, what it proposes, and what that may cost."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from architecture_models import pair
from random_models import BASES, PROMPT, plain_tokens, random_prompt, request, speculative_model

from specstream_mlx import UserError
from specstream_mlx.drafting import draft_model as module
from specstream_mlx.drafting.draft_model import DraftModel
from specstream_mlx.drafting.proposer import FREE, Material, Price
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.plan import NOTHING_VERIFIED
from specstream_mlx.engine.sampling import KeyedSampler, Sampling
from specstream_mlx.generation.batch import decode


def bare(base="grouped heads, tied", seed=0):
    return replace(speculative_model(base, seed=seed), streams=None)


def drafting_model(draft, prompt=PROMPT, most=4, **more):
    return DraftModel(draft, most, Material(prompt, bare(seed=9), **more))


def best_behind(model, tokens, width):
    """Log-probabilities of the likeliest tokens by a plain pass over the whole text."""
    logits = np.array(model.model(mx.array([tokens]))[0, -1]).astype(np.float64)
    scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    return [(int(token), scores[token]) for token in np.argsort(-scores)[:width]]


@pytest.mark.parametrize("base", BASES)
def test_every_guess_is_a_plain_pass_over_its_path(base, monkeypatch):
    """Windows included, in trees, over a prompt in chunks, and after tokens nobody drafted."""
    monkeypatch.setattr(module, "_CHUNK", 4)
    draft, text = bare(base, seed=3), [*PROMPT]
    drafter = drafting_model(draft, nodes=30)
    for tokens in ([5], [7, 8, 9], [11]):
        text += tokens
        drafter.accept(tokens)
        drafter.begin(NOTHING_VERIFIED, FREE)
        paths = list(drafter._guesses._guessed)
        assert max(map(len, paths)) == 3
        assert len(paths) > 4
        for path in paths:
            expected = best_behind(draft, [*text, *path], 4)
            found = drafter._guesses.after(path)
            assert [token for token, _ in found] == [token for token, _ in expected]
            assert [s for _, s in found] == pytest.approx([s for _, s in expected], abs=1e-3)


def test_the_model_itself_drafts_what_it_writes():
    """All of a chain is right; a token more is written by each call."""
    model = bare()
    expected = plain_tokens(model.model, PROMPT, 40)
    for most in (1, 3):
        settings = DraftSettings(
            tree_width=1, tree_size=8, draft_model=model, num_draft_tokens=most
        )
        steps = list(decode(model, request(PROMPT, settings, max_tokens=40)))
        assert [token for step in steps for token in step.tokens][:40] == expected
        assert {len(step.tokens) for step in steps[1:-1]} == {most + 1}
    # Drawn, it drafts what it will draw, once the target's noise has proved to help.
    sampler = KeyedSampler(5, Sampling(temp=1.5))
    settings = DraftSettings(tree_width=1, tree_size=3, draft_model=model, num_draft_tokens=3)
    steps = list(decode(model, request(PROMPT, settings, sampler=sampler, max_tokens=120)))
    assert np.mean([len(step.tokens) for step in steps[-8:-1]]) > 3


def test_neither_learned_positions_nor_dear_passes_are_overrun():
    """OPT's table has 512 rows, of which the paths of four drafts take three."""
    draft = replace(pair("OPT").model, streams=None)
    drafter, depths = drafting_model(draft, random_prompt(508)), []
    for _ in range(3):
        drafter.begin(NOTHING_VERIFIED, FREE)
        depths.append(drafter._guesses.depth)
        drafter.accept([5])
    assert depths == [4, 4, 0]
    # No pass is made where it costs more than it brings, nor deeper than the tree has nodes.
    read = []
    for nodes, price in ((30, Price(rate=1e-6)), (30, Price(rate=50.0)), (1, FREE)):
        drafter = drafting_model(bare(seed=2), most=8, nodes=nodes)
        drafter.begin(NOTHING_VERIFIED, price)
        read.append(len(drafter._guesses._guessed))
    assert read[0] > read[1] == read[2] == 1
    with pytest.raises(UserError, match="is 'a directory', expected a model that was loaded"):
        next(decode(bare(), request(PROMPT, DraftSettings(draft_model="a directory"))))


def test_a_model_that_is_never_right_rests_for_ever_longer():
    drafter, ran = drafting_model(bare(seed=2)), []
    price = Price(rate=1.0, row=0.01, plain=1e-6)
    for _ in range(150):
        drafter.begin(NOTHING_VERIFIED, price)
        ran.append(drafter._guesses.depth > 0)
        assert (drafter.spent() > 0) == ran[-1]
        guessed = {token for token, _ in drafter.children(())}
        drafter.accept([next(token for token in range(97) if token not in guessed)])
    gaps = np.diff(np.flatnonzero(ran))
    assert gaps.max() >= 64
    assert sum(ran) < 20
    assert drafter.children(()) == [] or ran[-1]


SIZES = {"hidden_size": 32, "intermediate_size": 48}


@pytest.mark.parametrize("temp", [0.0, 1.5])
@pytest.mark.parametrize(("rows", "drafted"), [(97, 90), (97, 60), (97, 30), (60, 97), (97, 97)])
def test_a_draft_model_with_other_rows_than_the_target(rows, drafted, temp):
    """Also where the target writes tokens that the draft model does not have, and it others."""
    target, draft = (
        replace(speculative_model(seed=seed, sizes=SIZES | {"vocab_size": size}), streams=None)
        for seed, size in ((0, rows), (3, drafted))
    )
    prompt, written = [token for token in PROMPT if token < 30], set()
    for seed in range(3 if temp else 1):
        sampler = KeyedSampler(seed, Sampling(temp=temp)) if temp else None
        texts = []
        for one in (None, draft):
            shape = {"tree_size": 8, "draft_model": one} if one else {"speculation": False}
            asked = request(prompt, DraftSettings(**shape), sampler=sampler, max_tokens=40)
            texts.append([token for step in decode(target, asked) for token in step.tokens][:40])
        assert texts[0] == texts[1]
        written |= {*texts[0]}
    assert temp < 1 or rows <= drafted or max(written) >= drafted
