"""How often each rank of each stream is right: counted, and measured."""

import numpy as np
import pytest
from random_models import random_prompt, request, speculative_model

from benchmarks.prediction.acceptance_table import AcceptanceCounts, measure_acceptance
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.scheduler import decode


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_the_measured_table_counts_what_was_written(mode):
    """All of the vocabulary as candidates: each depth is reached, and one rank is right."""
    model, prompts = speculative_model(mode=mode, seed=1), [random_prompt(9), random_prompt(4)]
    settings = DraftSettings(tree_width=97, tree_size=4)
    counts = measure_acceptance(model, prompts, settings, max_tokens=20)
    expected = AcceptanceCounts(3, 97)
    for prompt in prompts:
        text, drafts = [], []
        for step in decode(model, request(prompt, settings)):
            text += step.tokens
            drafts.append((len(text), np.array(step.result.streams.candidates)))
            if len(text) >= 20:
                break
        for start, candidates in drafts:
            for depth, token in enumerate(text[start : start + 3]):
                expected.reached[depth] += 1
                expected.hits[depth] += candidates[depth] == token
    assert (counts.hits == expected.hits).all()
    assert (counts.reached == expected.reached).all()
    assert counts.reached.min() >= 15
    assert np.sum(counts.rates(), axis=1) == pytest.approx([1, 1, 1])
