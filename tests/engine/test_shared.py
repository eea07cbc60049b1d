"""``shared`` + greedy prints what the same model prints with an empty tree (Eq. 3)."""

import pytest
from brute_force import forward
from random_models import (
    BASES,
    STREAMS,
    TREES,
    Oracle,
    assert_close,
    assert_same_rows,
    assert_same_tokens,
    empty_tree,
    plain_tokens,
    random_prompt,
    relative_error,
    speculative_model,
    tokens_of,
)
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import load

PROMPT = random_prompt(9)


def row_list(model, tokens, prompt=PROMPT):
    """The reference over prompt and generated tokens, streams from the last prompt token on."""
    return forward(model.model, model.config, tokens, model.streams, len(prompt) - 1)


@pytest.mark.parametrize("prompt_length", [1, 2, 9])
@pytest.mark.parametrize("streams", STREAMS)
def test_one_token_a_step_equals_the_row_list(streams, prompt_length):
    """Eq. 3 with streams beside the last prompt token and every generated one, none earlier."""
    model = speculative_model(mode="shared", **STREAMS[streams])
    prompt = random_prompt(prompt_length)
    tokens, logits, _ = empty_tree(model, 12, prompt)
    expected, _, _ = row_list(model, [*prompt, *tokens[:-1]], prompt)
    assert_close(logits, expected[prompt_length - 1 :])
    assert tokens == expected[prompt_length - 1 :].argmax(axis=1).tolist()


def test_streams_are_part_of_the_target():
    """Negative control: the plain model, and streams beside every prompt token, differ."""
    model = speculative_model(mode="shared")
    tokens, logits, _ = empty_tree(model, 12)
    sequence = [*PROMPT, *tokens[:-1]]
    for wrong in (
        forward(model.model, model.config, sequence)[0],
        forward(model.model, model.config, sequence, model.streams, 0)[0],
    ):
        assert relative_error(logits, wrong[len(PROMPT) - 1 :]) > 1e-2
    assert tokens != plain_tokens(model.model, PROMPT, 12)


@pytest.mark.parametrize("tree", TREES)
def test_every_tree(tree):
    model = speculative_model(mode="shared", seed=1)
    expected, logits, _ = empty_tree(model, 30)
    assert len(set(expected)) >= 10
    found = tokens_of(model, PROMPT, 30, **TREES[tree])
    assert_same_tokens(found, expected, logits.__getitem__)


@pytest.mark.parametrize("deferred", [True, False])
def test_nothing_is_deferred_in_shared_mode(deferred):
    model = speculative_model(mode="shared", seed=1)
    expected, logits, _ = empty_tree(model, 20, deferred=not deferred)
    found = tokens_of(model, PROMPT, 20, deferred=deferred)
    assert_same_tokens(found, expected, logits.__getitem__)


@pytest.mark.parametrize("settings", [{}, {"max_nodes": 30}], ids=["all", "max_nodes"])
@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("base", ["grouped heads, tied", "one kv head, untied"])
def test_accepted_paths(base, streams, settings, monkeypatch):
    model = speculative_model(base, mode="shared", seed=1, **STREAMS[streams])
    expected, logits, _ = empty_tree(model, 50)
    oracle = Oracle(expected).install(monkeypatch)
    found = tokens_of(model, PROMPT, 40, **settings)
    assert_same_tokens(found, expected, logits.__getitem__)
    assert oracle.longest >= 3
    assert oracle.gathered >= 3
    monkeypatch.undo()
    _, _, caches = empty_tree(model, len(found))
    assert_same_rows(oracle.decoders[0].caches, caches)


@pytest.mark.parametrize("base", BASES)
def test_accepted_paths_on_every_base(base, monkeypatch):
    model = speculative_model(base, mode="shared", seed=2)
    expected, logits, _ = empty_tree(model, 50)
    oracle = Oracle(expected).install(monkeypatch)
    found = tokens_of(model, PROMPT, 40)
    assert_same_tokens(found, expected, logits.__getitem__)
    assert oracle.longest >= 4


def test_past_the_growth_of_the_cache(monkeypatch):
    model = speculative_model(mode="shared", seed=1)
    expected, logits, _ = empty_tree(model, 310)
    Oracle(expected).install(monkeypatch)
    assert_same_tokens(tokens_of(model, PROMPT, 300), expected, logits.__getitem__)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_adapter_directory(lora_rank, tmp_path, monkeypatch):
    """LoRA on main stream and streams alike, loaded from a directory, a quantized base."""
    base = tiny_llama_directory(tmp_path / "base", bits=4, seed=3, tie_word_embeddings=False)
    adapter = stream_adapter_directory(
        tmp_path / "adapter", base, mode="shared", lora_rank=lora_rank, lora_scale=2.0
    )
    model, _ = load(base, adapter_path=adapter, weights="expanded")
    tokens, logits, _ = empty_tree(model, 16)
    expected, _, _ = row_list(model, [*PROMPT, *tokens[:-1]])
    assert_close(logits, expected[len(PROMPT) - 1 :])
    oracle = Oracle(tokens).install(monkeypatch)
    assert_same_tokens(tokens_of(model, PROMPT, 10), tokens, logits.__getitem__)
    assert oracle.longest >= 3


def test_fewer_streams_limit_the_depth_only():
    """All trained streams run; with the control that fewer of them would change the target."""
    model = speculative_model(mode="shared", seed=1)
    expected, logits, _ = empty_tree(model, 20)
    found = tokens_of(model, PROMPT, 20, num_streams=1)
    assert_same_tokens(found, expected, logits.__getitem__)
    tokens = [*PROMPT, *expected[:-1]]
    fewer = speculative_model(mode="shared", seed=1, num_streams=2)
    fewer.streams.streams["embeddings"] = model.streams.streams["embeddings"][:2]
    main, _, _ = row_list(fewer, tokens)
    assert relative_error(logits, main[len(PROMPT) - 1 :]) > 1e-2
