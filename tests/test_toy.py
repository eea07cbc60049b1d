"""Trained streams and a trained adapter draft on text that they have not seen."""

import pytest
from toy_model import questions

from specstream_mlx import load, stream_generate
from specstream_mlx.prompts import chat_prompt


@pytest.mark.parametrize("adapter", ["streams", "adapters/sql"])
def test_calls_bring_more_than_a_token(adapter, toy_directory):
    """Of chains in every step: how much is drafted otherwise depends on the machine."""
    model, tokenizer = load(toy_directory / "base", adapter_path=toy_directory / adapter)
    tokens = calls = 0
    for row in questions(6, seed=1):
        prompt = chat_prompt(tokenizer, row["prompt"], model.prompt_template)
        *_, last = stream_generate(model, tokenizer, prompt, 64, tree_width=1)
        tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
    assert tokens / calls > 1.5
