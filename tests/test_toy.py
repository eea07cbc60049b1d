"""The invariants on a trained model and real text."""

import json

import pytest
from toy_model import TOY

from specstream_mlx import load, stream_generate
from specstream_mlx.prompts import chat_prompt

TREES = {
    "chain": {"tree_width": 1, "tree_size": None},
    "chain, beside": {"tree_width": 1, "tree_size": None, "deferred": False},
    "best-first": {"tree_width": 4, "tree_size": 8},
    "binary": {"tree_width": 2, "tree_size": None, "num_streams": 3},
    "pruned": {"tree_width": 4, "tree_size": 14, "max_nodes": 7, "deferred": False},
    "likely drafts only": {"tree_size": 12, "draft_threshold": 0.2},
}
PROMPTS = {}
for line in map(json.loads, (TOY / "prompts.jsonl").read_text().splitlines()):
    PROMPTS.setdefault(line["task"], []).append(line["prompt"])
STREAMS, SQL = TOY / "streams", TOY / "adapters" / "sql"


@pytest.fixture(scope="module")
def loaded():
    return load(TOY / "base")


def task_prompts(tokenizer, task, count):
    """The first prompts of a task that nobody trained on, the task's instruction around each."""
    return [chat_prompt(tokenizer, text) for text in PROMPTS[task][:count]]


def held_out_prompts(tokenizer, per_task):
    return [ids for task in PROMPTS for ids in task_prompts(tokenizer, task, per_task)]


def accepted_length(model, tokenizer, prompts, count):
    """Of chains in every step: how much is drafted otherwise depends on the machine."""
    tokens = calls = 0
    for prompt in prompts:
        *_, last = stream_generate(model, tokenizer, prompt, count, tree_width=1)
        tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
    return tokens / calls


def test_streams_draft_for_the_base(loaded):
    model, tokenizer = loaded
    model.swap_adapter(STREAMS)
    assert accepted_length(model, tokenizer, held_out_prompts(tokenizer, 1), 32) > 1.1


def test_an_adapter_drafts_for_its_task(loaded):
    model, tokenizer = loaded
    model.swap_adapter(SQL)
    assert accepted_length(model, tokenizer, task_prompts(tokenizer, "sql", 3), 64) > 1.15
