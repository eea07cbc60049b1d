"""Streams' probabilities, corrected by what has come of them in the text, and pooled with lookup's:
examples by hand."""

import math

import numpy as np
import pytest

from specstream_mlx.drafting.calibration import MOST_TOGETHER, StreamAverages
from specstream_mlx.drafting.pooling import pooled
from specstream_mlx.engine.guess import NO_GUESSES, StreamGuesses

GUESSES = np.array([[1, 2], [3, 4], [5, 6]])
PROBABILITIES = np.array([[0.8, 0.1], [0.5, 0.2], [0.25, 0.25]])
TRUNK, ELSEWHERE, FIRST = 0, 1, 0


def guesses(depths=slice(None)):
    return StreamGuesses(GUESSES[depths], np.log(PROBABILITIES[depths]))


def guessed(averages):
    averages.take(guesses())
    return [[averages.after(path[:depth]) for depth in range(3)] for path in ((1, 3), (0, 0))]


def test_a_guess_is_judged_where_all_before_it_were_candidates():
    averages = StreamAverages()
    trunk, elsewhere = guessed(averages)
    for level, row in zip(trunk, PROBABILITIES, strict=True):
        assert [math.exp(p) for _, p in level] == pytest.approx(0.8 * row)  # a little doubt
    assert trunk == elsewhere
    averages.accept([1, 4])  # the first guess, then the other one
    averages.accept([5])  # which lies elsewhere than on the trunk
    weight = 8.0
    assert averages.hits[TRUNK] == pytest.approx([0.8 * weight + 1, 0.8 * weight + 1])
    assert averages.expected[TRUNK] == pytest.approx([weight + 1.3, weight + 0.3])
    assert averages.hits[ELSEWHERE] == pytest.approx([0.8 * weight + 1, 0.8 * weight])
    assert averages.expected[ELSEWHERE] == pytest.approx([weight + 0.25, weight + 0.25])
    averages = StreamAverages()
    guessed(averages)
    averages.accept([7, 3, 5])  # no candidate: what comes after it is not judged
    assert averages.hits == [[6.4, 6.4], [6.4, 6.4]]
    assert averages.expected[TRUNK] == pytest.approx([8.8, 8.1])
    assert averages.expected[ELSEWHERE] == [8.0, 8.0]
    averages = StreamAverages()  # of two steps, drafted or not, the same token judges both
    guessed(averages)
    averages.accept([1])
    averages.take(guesses(slice(1, None)))
    averages.accept([3])
    assert averages.hits[TRUNK][FIRST] == pytest.approx(6.4 + 3)
    assert averages.expected[TRUNK][FIRST] == pytest.approx(8 + 0.8 + 0.5 + 0.5)


def test_what_was_long_ago_counts_less():
    averages = StreamAverages()
    for _ in range(200):
        averages.take(guesses(slice(1)))
        averages.accept([9])
    assert averages.expected[TRUNK][FIRST] == pytest.approx(16)
    assert averages.factor(TRUNK, 0) < 0.01
    for _ in range(60):
        averages.take(guesses(slice(1)))
        averages.accept([1])
    assert averages.factor(TRUNK, 0) == pytest.approx(1 / 0.8, rel=0.1)
    assert averages.factor(TRUNK, 2) == averages.factor(TRUNK, 1) < 0.2


def test_probabilities_stay_probabilities_and_without_guesses_there_are_none():
    averages = StreamAverages()
    averages.hits = [[32.0, 32.0], [32.0, 32.0]]
    trunk, _ = guessed(averages)
    for level in trunk:
        found = [math.exp(p) for _, p in level]
        assert max(found) <= 0.99 and sum(found) <= MOST_TOGETHER + 1e-9
    averages.take(NO_GUESSES)
    assert averages.after(()) == []
    averages.accept([1, 2])


# Pooled with lookup's ------------------------------------------------------------------------


def together(streams, found):
    """Pooled probabilities of probabilities by token."""
    streams, found = ([(t, math.log(p)) for t, p in given.items()] for given in (streams, found))
    return {token: math.exp(score) for token, score in pooled(streams, found)}


def test_probabilities_sum_to_at_most_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        streams = dict(zip(range(4), rng.dirichlet(np.full(5, 0.3))[:4] + 1e-9, strict=True))
        first, second, _ = rng.dirichlet([1, 1, 1])
        token = int(rng.integers(0, 7))
        found = together(streams, {token: first, token + 1: second})
        assert set(found) == {*streams, token, token + 1}
        assert sum(found.values()) <= 1 + 1e-6
        assert all(value >= 0 for value in found.values())
        assert together(streams, {}) == pytest.approx(streams)


def test_odds_multiply():
    """Of 0.3 * 0.6 / 0.05 and 0.5 * 0.4 and 0.2 * 0.4 for all other tokens."""
    found = together({3: 0.5, 4: 0.3}, {4: 0.6})
    total = 3.6 + 0.2 + 0.08
    assert found == pytest.approx({3: 0.2 / total, 4: 3.6 / total})


def test_next_to_nothing_and_a_little_more_than_one_may_be_left():
    streams = [(3, math.log(MOST_TOGETHER)), (4, -math.inf)]
    for token in (4, 5):
        assert set(dict(pooled(streams, [(token, math.log(0.5))]))) == {3, token}
    certain = [(5, math.log1p(1e-15)), (7, math.log(1e-17))]
    assert dict(pooled([(5, math.log(0.9)), (6, math.log(0.05))], certain))[5] == 0.0
    assert dict(pooled(certain, [(6, math.log(0.5))]))[5] == 0.0
