"""Trained streams and a trained adapter draft on text that they have not seen."""

import json

import pytest
from toy_model import TOY

from specstream_mlx import load, stream_generate
from specstream_mlx.prompts import chat_prompt

PROMPTS = {}
for line in map(json.loads, (TOY / "prompts.jsonl").read_text().splitlines()):
    PROMPTS.setdefault(line["task"], []).append(line["prompt"])


@pytest.mark.parametrize(
    ("adapter", "texts", "count", "least"),
    [
        ("streams", [prompts[0] for prompts in PROMPTS.values()], 32, 1.1),
        ("adapters/sql", PROMPTS["sql"][:3], 64, 1.15),
    ],
)
def test_calls_bring_more_than_a_token(adapter, texts, count, least):
    """Of chains in every step: how much is drafted otherwise depends on the machine."""
    model, tokenizer = load(TOY / "base", adapter_path=TOY / adapter)
    tokens = calls = 0
    for text in texts:
        prompt = chat_prompt(tokenizer, text)
        *_, last = stream_generate(model, tokenizer, prompt, count, tree_width=1)
        tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
    assert tokens / calls > least
