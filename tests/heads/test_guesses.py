"""Draft heads guess what short formulas in numpy say, and the text is plain decoding's.

Trees hold the true continuation, as those of a trained head would, so that paths of any length are
accepted; the heads only guess behind them.
"""

import itertools

import numpy as np
import pytest
from draft_heads import HEADS, model_with_head
from random_models import (
    PROMPT,
    TrueTrees,
    assert_lossless,
    paired,
    plain_tokens,
    random_prompt,
    request,
)

from specstream_mlx.drafting.fixed import FixedDrafting
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.loop import Together, decode

STEPS = 6
TREES = {
    "best-first": DraftSettings(tree_width=3, tree_size=6),
    "full": DraftSettings(tree_width=2, tree_size=None),
}


ONE_OF_EACH = ["medusa, own heads", "hydra", "hydra++", "eagle", "eagle3, some tokens"]


@pytest.fixture
def mounted(request, tmp_path):
    return model_with_head(request.param, tmp_path / "head")


def knowing(model, text, settings, seed=0):
    return FixedDrafting(TrueTrees(text, seed, width=2), settings.plans(model.guessing))


@pytest.mark.parametrize(("mounted", "tree"), paired(HEADS, TREES), indirect=["mounted"])
def test_heads_guess_as_the_formulas_do(mounted, tree):
    model, logits_of = mounted
    text = plain_tokens(model.model, PROMPT, 60)
    asked = request(PROMPT, knowing(model, text, TREES[tree]), prefill_step_size=3)
    written, lengths = [], set()
    for step in itertools.islice(decode(model, asked), STEPS):
        written += step.tokens
        lengths.add(len(step.tokens))
        compare(logits_of, [*PROMPT, *written], step, model)
    assert_lossless(model.model, PROMPT, written, text)
    assert 1 in lengths and max(lengths) > 3


@pytest.mark.parametrize("mounted", ONE_OF_EACH, indirect=True)
def test_texts_side_by_side_have_guesses_of_their_own(mounted):
    model, logits_of = mounted
    together, texts = Together(model), {}
    for seed, length in enumerate((9, 1, 14)):
        prompt = random_prompt(length, seed=seed)
        text = plain_tokens(model.model, prompt, 60)
        drafting = knowing(model, text, TREES["best-first"], seed)
        limit = 5 + 10 * seed
        joined = together.join(request(prompt, drafting, max_tokens=limit))
        texts[joined] = [*prompt], [*prompt, *text]
    for steps in together.steps():
        for joined, step in steps:
            written, whole = texts[joined]
            written += step.tokens
            assert written == whole[: len(written)]
            compare(logits_of, written, step, model)


def compare(logits_of, text, step, model):
    """Compare the guesses of a step behind every path with those of the formula."""
    guesses = step.result.guesses()
    assert guesses.depth == model.head.config.num_streams
    paths, depths = [()], set()
    while paths:
        path = paths.pop()
        if not (found := guesses.behind(path)):
            continue
        depths.add(len(path))
        logits, tokens = logits_of(text, path)
        expected = logits - np.logaddexp.reduce(logits)
        best = np.sort(expected)[::-1]
        place = {token: number for number, token in enumerate(tokens)}
        for rank, (token, log_prob) in enumerate(found):
            assert abs(expected[place[token]] - log_prob) < 1e-3
            assert abs(best[rank] - log_prob) < 1e-3
            paths.append((*path, token))
    assert depths == set(range(guesses.depth))
