"""``shared`` + greedy prints what the same model prints with an empty tree (Eq. 3)."""

import pytest
from brute_force import forward
from random_models import (
    BASES,
    PROMPT,
    STREAMS,
    Oracle,
    assert_close,
    assert_same_rows,
    assert_same_tokens,
    empty_tree,
    paired,
    plain_tokens,
    random_prompt,
    relative_error,
    speculative_model,
    tokens_of,
)


def row_list(model, tokens, prompt=PROMPT):
    """The reference over prompt and generated tokens, streams from the last prompt token on."""
    return forward(model.model, model.config, tokens, model.streams, len(prompt) - 1)


@pytest.mark.parametrize(("streams", "prompt_length"), paired(STREAMS, [1, 2, 9]))
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


@pytest.mark.parametrize(
    ("base", "streams", "settings"), paired(BASES, STREAMS, ({}, {"max_nodes": 30}), count=12)
)
def test_accepted_paths(base, streams, settings, monkeypatch):
    model = speculative_model(base, mode="shared", seed=1, **STREAMS[streams])
    expected, logits, _ = empty_tree(model, 40)
    oracle = Oracle(expected).install(monkeypatch)
    found = tokens_of(model, PROMPT, 30, **settings)
    assert_same_tokens(found, expected, logits.__getitem__)
    assert oracle.longest >= 3
    assert oracle.gathered >= 3
    monkeypatch.undo()
    _, _, caches = empty_tree(model, len(found))
    assert_same_rows(oracle.decoders[0].caches, caches)


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
