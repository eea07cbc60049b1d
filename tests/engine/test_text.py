"""Greedy text is mlx_lm's; of shared streams, the same model's with an empty tree (Eq. 3)."""

import pytest
from brute_force import forward
from random_models import (
    BASES,
    PROMPT,
    STREAMS,
    Oracle,
    assert_close,
    assert_lossless,
    assert_same_rows,
    assert_same_tokens,
    empty_tree,
    paired,
    plain_caches,
    random_prompt,
    sequel,
    speculative_model,
    tokens_of,
)

from specstream_mlx.engine import step

WAYS = {
    **{"all nodes": {}, "one node": {"stream_nodes": 1}, "three nodes": {"stream_nodes": 3}},
    **{"pruned": {"max_nodes": 30}, "threshold": {"prune_threshold": 1e-4}},
}


@pytest.mark.parametrize(("way", "streams", "base"), paired(WAYS, STREAMS, BASES, count=12))
def test_accepted_paths(way, streams, base, monkeypatch):
    """Long right paths among distractors: tokens, and the rows that stay in the KV cache.

    The trees are random but for the path, so that no tree of any drafter can change the text.
    """
    model, count = speculative_model(base, seed=1, **STREAMS[streams]), 40
    expected = sequel(base)
    oracle = Oracle(expected).install(monkeypatch)
    found = tokens_of(model, PROMPT, count, **WAYS[way])
    assert_lossless(model.model, PROMPT, found, expected)
    assert oracle.longest >= 3
    assert oracle.gathered >= 5
    assert_same_rows(oracle.decoders[0].caches, plain_caches(model.model, [*PROMPT, *found][:-1]))


def test_committing_the_wrong_rows_is_noticed(monkeypatch):
    """Negative control: compaction that keeps the first rows instead of the accepted ones."""
    model, expected = speculative_model(seed=1), sequel("grouped heads, tied")
    oracle = Oracle(expected).install(monkeypatch)
    right = step.commit

    def first(layers, paths, *more):
        right(layers, [range(len(path)) for path in paths], *more)

    monkeypatch.setattr(step, "commit", first)
    found = tokens_of(model, PROMPT, 40)
    assert found[:40] != expected[:40]
    with pytest.raises(AssertionError, match="relative difference"):
        assert_same_rows(
            oracle.decoders[0].caches, plain_caches(model.model, [*PROMPT, *found][:-1])
        )


@pytest.mark.parametrize(("streams", "prompt_length"), paired(STREAMS, [1, 2, 9]))
def test_one_token_a_step_equals_the_row_list(streams, prompt_length):
    """Eq. 3 with streams beside the last prompt token and every generated one, none earlier."""
    model = speculative_model(mode="shared", **STREAMS[streams])
    prompt = random_prompt(prompt_length)
    tokens, logits, _ = empty_tree(model, 12, prompt)
    text, start = [*prompt, *tokens[:-1]], prompt_length - 1
    expected = forward(model.model, model.config, text, model.streams, start)[0][start:]
    assert_close(logits, expected)
    assert tokens == expected.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("base", "streams", "settings"), paired(BASES, STREAMS, ({}, {"max_nodes": 30}), count=12)
)
def test_accepted_paths_of_shared_streams(base, streams, settings, monkeypatch):
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
