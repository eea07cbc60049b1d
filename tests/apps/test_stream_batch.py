"""Texts that are written at once: each is that of its prompt alone; reading is reported."""

import pytest
from architecture_models import CASES, pair
from random_models import random_prompt, tokens_of
from specstream_mlx.apps.writing_tools.stream_batch import stream_batch
from tiny_models import tokenizer_ending


@pytest.mark.parametrize("case", CASES)
def test_each_text_is_that_of_its_prompt_alone(case):
    """In one pass or, of models that stay alone, in passes of their own."""
    model = pair(case).model
    vocab_size = model.config["vocab_size"]
    prompts = [random_prompt(length, seed=length, vocab_size=vocab_size) for length in (5, 9, 2)]
    prompts[2] = prompts[1][:7] + prompts[2]
    written, readings = [[], [], []], []
    texts = [(model, prompt) for prompt in prompts]
    responses = stream_batch(texts, tokenizer_ending(), 8, lambda *counts: readings.append(counts))
    for number, response in responses:
        written[number].append(response.token)
    assert written == [tokens_of(model, prompt, 8)[:8] for prompt in prompts]
    assert {of for _, of in readings} == {sum(map(len, prompts))}
    assert max(read for read, _ in readings) == sum(map(len, prompts))
