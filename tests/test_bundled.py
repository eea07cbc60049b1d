"""The bundled demonstration model: what it must be, and the invariants on real text.

Skipped where an installation has no bundled model.
"""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm import load as load_plain
from mlx_lm import stream_generate as plain_stream_generate
from random_models import assert_lossless, paired, plain_tokens, tokens_of
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.demo_model.bundle import MOST_BYTES, size_of

from benchmarks.texts import rouge_l, task_items
from specstream_mlx import UserError, bundled, generate, load, stream_generate
from specstream_mlx.prompts import chat_prompt

try:
    bundled.base_path()
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

TREES = {
    "chain": {"tree_width": 1, "tree_size": None},
    "chain, beside": {"tree_width": 1, "tree_size": None, "deferred": False},
    "best-first": {"tree_width": 4, "tree_size": 8},
    "binary": {"tree_width": 2, "tree_size": None, "num_streams": 3},
    "pruned": {"tree_width": 4, "tree_size": 14, "max_nodes": 7, "deferred": False},
    "likely drafts only": {"tree_size": 12, "draft_threshold": 0.2},
}
REQUIRED = ("describe", "proofread", "sql", "summarize")
ADAPTERS = bundled.adapter_names()


@pytest.fixture(scope="module")
def loaded():
    return load(bundled.base_path())


def task_prompts(tokenizer, task, count):
    """Prompts of held-out items, the task's instruction around each."""
    items = tasks.held_out(task, count)
    return [chat_prompt(tokenizer, tasks.instructed(item)) for item in items]


def held_out_prompts(tokenizer, per_task):
    return [ids for task in tasks.TASKS for ids in task_prompts(tokenizer, task, per_task)]


def assert_same_as_mlx_lm(model, prompts, count, trees):
    for prompt in prompts:
        expected = plain_tokens(model.model, prompt, count)
        for tree in trees:
            found = tokens_of(model, prompt, count, **tree)[:count]
            assert_lossless(model.model, prompt, found, expected)


def test_bundle_is_complete_and_small():
    assert set(REQUIRED) <= set(ADAPTERS)
    assert size_of(bundled.ROOT) <= MOST_BYTES


def test_lossless_on_held_out_prompts(loaded):
    model, tokenizer = loaded
    model.swap_adapter(bundled.streams_path())
    for prompt, tree in paired(held_out_prompts(tokenizer, 1), TREES.values()):
        assert_same_as_mlx_lm(model, [prompt], 24, [tree])


@pytest.mark.slow
@pytest.mark.parametrize("task", list(tasks.TASKS))
def test_lossless_on_two_hundred_held_out_prompts(loaded, task):
    """25 prompts of each of the eight tasks, each with one of the trees in turn."""
    model, tokenizer = loaded
    model.swap_adapter(bundled.streams_path())
    prompts = task_prompts(tokenizer, task, 25)
    assert len(prompts) * len(tasks.TASKS) >= 200
    trees = list(TREES.values())
    for number, prompt in enumerate(prompts):
        assert_same_as_mlx_lm(model, [prompt], 24, [trees[number % len(trees)]])


@pytest.mark.parametrize(("name", "tree"), paired(ADAPTERS, ("chain", "best-first", "pruned")))
def test_shared_trees_write_what_one_token_a_step_writes(loaded, name, tree):
    model, tokenizer = loaded
    model.swap_adapter(bundled.adapter_path(name))
    (prompt,) = task_prompts(tokenizer, name, 1)
    expected = tokens_of(model, prompt, 24, speculation=False)
    assert tokens_of(model, prompt, 24, **TREES[tree])[:24] == expected


def accepted_length(model, tokenizer, prompts, count):
    """Of chains in every step: how much is drafted otherwise depends on the machine."""
    tokens = calls = 0
    for prompt in prompts:
        *_, last = stream_generate(model, tokenizer, prompt, count, tree_width=1)
        tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
    return tokens / calls


def test_streams_draft_for_the_base(loaded):
    model, tokenizer = loaded
    model.swap_adapter(bundled.streams_path())
    assert accepted_length(model, tokenizer, held_out_prompts(tokenizer, 1), 32) > 1.1


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_draft_for_their_tasks(loaded, name):
    model, tokenizer = loaded
    model.swap_adapter(bundled.adapter_path(name))
    assert accepted_length(model, tokenizer, task_prompts(tokenizer, name, 3), 64) > 1.15


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_are_useful(loaded, name):
    """ROUGE-L on 20 texts that people typed: floors below what `benchmarks.answers` reads."""
    model, tokenizer = loaded
    model.swap_adapter(bundled.adapter_path(name))
    items = task_items("dev", name, 20)
    outputs = [generate(model, tokenizer, text, max_tokens=160) for text, _ in items]
    floor = {"proofread": 0.8, "sql": 0.6, "key_points": 0.45}.get(name, 0.25)
    assert rouge_l(outputs, [answers for _, answers in items]) >= floor


def test_swapping_leaves_the_base_as_it_is(loaded):
    model, tokenizer = loaded
    model.swap_adapter(None)
    before = dict(tree_flatten(model.model.parameters()))
    prompt = held_out_prompts(tokenizer, 1)[0]
    expected = plain_tokens(model.model, prompt, 16)
    for path in (*map(bundled.adapter_path, ADAPTERS), bundled.streams_path()):
        model.swap_adapter(path)
        mounted = dict(tree_flatten(model.model.parameters()))
        for name, weight in before.items():
            found = mounted.get(name)
            if found is None:  # LoRA wraps the layer: ``x.weight`` is now ``x.linear.weight``
                stem, _, leaf = name.rpartition(".")
                found = mounted[f"{stem}.linear.{leaf}"]
            assert mx.array_equal(found, weight), name
    model.swap_adapter(None)
    assert set(dict(tree_flatten(model.model.parameters()))) == set(before)
    assert plain_tokens(model.model, prompt, 16) == expected


def test_mlx_lm_loads_the_adapters():
    base = str(bundled.base_path())
    plain = dict(tree_flatten(load_plain(base)[0].parameters()))
    for name in ADAPTERS:
        model, tokenizer = load_plain(base, adapter_path=bundled.adapter_path(name))
        mounted = [key for key, _ in tree_flatten(model.parameters()) if "lora" in key]
        assert mounted and not set(mounted) & set(plain)
    prompt = task_prompts(tokenizer, name, 1)[0][-2:]  # packed half precision is slow on a CPU
    responses = list(plain_stream_generate(model, tokenizer, prompt, max_tokens=2))
    assert responses[-1].finish_reason in ("length", "stop")


def test_configurations_name_no_directory():
    for path in bundled.ROOT.rglob("*config.json"):
        values = [value for _, value in tree_flatten(json.loads(path.read_text()))]
        assert not [v for v in values if isinstance(v, str) and v.startswith("/")], path
