"""Draft heads guess what short formulas say, and the text is plain decoding's.

Trees hold the true continuation, as those of a trained head would, so that paths of any length are
accepted; the heads only guess behind them.
"""

import itertools

import numpy as np
import pytest
import torch
from draft_heads import HEADS, HIDDEN, assert_guesses, medusa, model_with_head
from random_models import (
    PROMPT,
    TrueTrees,
    assert_lossless,
    paired,
    plain_tokens,
    random_prompt,
    request,
    speculative_model,
)
from trees import Planned

from benchmarks.rivals.heads import mounted as read
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.generation.batch import Batch, decode
from specstream_mlx.generation.sequence import TokenSequence

STEPS = 6
TREES = {
    "best-first": DraftSettings(tree_width=3, tree_size=6),
    "full": DraftSettings(tree_width=2, tree_size=None),
}
ONE_OF_EACH = ["medusa, own heads", "hydra", "eagle", "eagle3, some tokens", "ppd"]


@pytest.fixture
def mounted(request, tmp_path):
    return model_with_head(request.param, tmp_path / "head")


def knowing(model, text, settings, seed=0):
    return Planned(TrueTrees(text, seed, width=2), settings.plans(model.guessing))


@pytest.mark.parametrize(("mounted", "tree"), paired(HEADS, TREES), indirect=["mounted"])
def test_heads_guess_as_the_formulas_do(mounted, tree):
    model, logits_of = mounted
    text = plain_tokens(model.model, PROMPT, 60)
    asked = request(PROMPT, knowing(model, text, TREES[tree]), prefill_step_size=3)
    written, lengths = [], set()
    for step in itertools.islice(decode(model, asked), STEPS):
        written += step.tokens
        lengths.add(len(step.tokens))
        assert_guesses(logits_of, [*PROMPT, *written], step, model)
    assert_lossless(model.model, PROMPT, written, text)
    assert 1 in lengths and max(lengths) > 3


@pytest.mark.parametrize("mounted", ONE_OF_EACH, indirect=True)
def test_texts_side_by_side_have_guesses_of_their_own(mounted):
    model, logits_of = mounted
    together, texts = Batch(), {}
    for seed, length in enumerate((9, 1, 14)):
        prompt = random_prompt(length, seed=seed)
        text = plain_tokens(model.model, prompt, 60)
        drafting = knowing(model, text, TREES["best-first"], seed)
        limit = 5 + 10 * seed
        joined = TokenSequence(model, request(prompt, drafting, max_tokens=limit))
        together.add(joined)
        texts[joined] = [*prompt], [*prompt, *text]
    while together:
        for joined, step in together.step():
            written, whole = texts[joined]
            written += step.tokens
            assert written == whole[: len(written)]
            assert_guesses(logits_of, written, step, model)


def test_torchs_files_and_heads_within_a_whole_model_are_read(tmp_path):
    model = speculative_model()
    tensors, *_ = medusa(np.random.default_rng(0), model)
    values = {f"medusa_head.{name}": torch.tensor(tensor) for name, tensor in tensors.items()}
    values |= {"model.norm.weight": torch.ones(HIDDEN)}
    torch.save(values, tmp_path / "pytorch_model.bin")
    head = read(tmp_path, model)
    assert head.config.parameters == sum(tensor.size for tensor in tensors.values())
