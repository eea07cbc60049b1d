"""The streams' likeliest tokens, against sorting the whole vocabulary."""

import mlx.core as mx
import numpy as np
import pytest

from specstream_mlx.engine.guess import best_tokens, drawn_candidates


@pytest.mark.parametrize("vocab", [5, 64, 300, 1024, 4096, 5001, 32_000])
def test_the_best_tokens_are_those_of_a_full_sort(vocab):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 3, (3, vocab)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for width in (1, 2, 4, 5):
        tokens, log_probs = best_tokens(mx.array(logits), width)
        expected = np.argsort(-logits, axis=1)[:, :width]
        assert np.array_equal(np.array(tokens), expected)
        assert np.abs(np.array(log_probs) - np.take_along_axis(exact, expected, 1)).max() < 1e-4


@pytest.mark.parametrize("vocab", [300, 4096, 5001])
def test_the_best_may_all_lie_in_one_group(vocab):
    logits = np.zeros((2, vocab), np.float32)
    logits[0, :4], logits[1, -4:] = [4, 1, 3, 2], [1, 2, 3, 4]
    tokens, _ = best_tokens(mx.array(logits), 4)
    last = vocab - 1
    assert np.array(tokens).tolist() == [[0, 2, 3, 1], [last, last - 1, last - 2, last - 3]]


def test_tokens_that_cannot_follow_come_last():
    logits = np.full((1, 4096), -np.inf, np.float32)
    logits[0, [70, 4000]] = 1.0, 2.0
    tokens, log_probs = best_tokens(mx.array(logits), 4)
    found = np.array(tokens)[0].tolist()
    assert found[:2] == [4000, 70] and len(set(found)) == 4
    assert np.isinf(np.array(log_probs)[0, 2:]).all()


@pytest.mark.parametrize("vocab", [300, 4096])
def test_equal_logits_give_different_tokens(vocab):
    tokens, _ = best_tokens(mx.zeros((2, vocab)), 4)
    assert all(len(set(row)) == 4 for row in np.array(tokens).tolist())


@pytest.mark.parametrize("width", [2, 5])
def test_no_token_beyond_the_vocabulary_is_drawn(width):
    """The last group is not full, and the only token that can follow is in it."""
    vocab = 4098
    log_probs = np.full((3, vocab), -np.inf, np.float32)
    log_probs[:, vocab - 2] = 0.0
    tokens, drawn = drawn_candidates(mx.array(log_probs), width)
    for row, values in zip(np.array(tokens).tolist(), np.array(drawn), strict=True):
        assert row[0] == vocab - 2 and len(set(row)) == width and max(row) < vocab
        assert values[0] == 0.0 and np.isinf(values[1:]).all()
