"""Streams' probabilities, corrected by what has come of them in the text: examples by hand."""

import math

import numpy as np
import pytest

from specstream_mlx.drafting.calibration import StreamAverages
from specstream_mlx.engine.guess import NO_GUESSES, StreamGuesses

GUESSES = np.array([[1, 2], [3, 4], [5, 6]])
PROBABILITIES = np.array([[0.8, 0.1], [0.5, 0.2], [0.25, 0.25]])
TRUNK, ELSEWHERE, FIRST, OTHER = 0, 1, 0, 1


def guesses(depths=slice(None)):
    return StreamGuesses(GUESSES[depths], np.log(PROBABILITIES[depths]))


def guessed(averages):
    averages.take(guesses())
    return [[averages.behind(path[:depth]) for depth in range(3)] for path in ((1, 3), (0, 0))]


def test_a_text_begins_with_a_little_doubt():
    trunk, elsewhere = guessed(StreamAverages())
    for level, row in zip(trunk, PROBABILITIES, strict=True):
        assert [math.exp(p) for _, p in level] == pytest.approx(0.8 * row)
    assert trunk == elsewhere
    assert [[token for token, _ in level] for level in trunk] == GUESSES.tolist()


def test_a_guess_is_judged_where_all_before_it_were_candidates():
    averages = StreamAverages()
    guessed(averages)
    averages.accept([1, 4])  # the first guess, then the other one
    averages.accept([5])  # which lies elsewhere than on the trunk
    weight = 8.0
    assert averages.hits[TRUNK] == pytest.approx([0.8 * weight + 1, 0.8 * weight + 1])
    assert averages.expected[TRUNK] == pytest.approx([weight + 1.3, weight + 0.3])
    assert averages.hits[ELSEWHERE] == pytest.approx([0.8 * weight + 1, 0.8 * weight])
    assert averages.expected[ELSEWHERE] == pytest.approx([weight + 0.25, weight + 0.25])


def test_behind_a_token_that_nobody_guessed_nothing_is_judged():
    averages = StreamAverages()
    guessed(averages)
    averages.accept([7, 3, 5])
    assert averages.hits == [[6.4, 6.4], [6.4, 6.4]]
    assert averages.expected[TRUNK] == pytest.approx([8.8, 8.1])
    assert averages.expected[ELSEWHERE] == [8.0, 8.0]


def test_guesses_of_several_steps_are_judged_by_the_same_tokens():
    """Whether drafted or not: the second step guesses what the first one did, a token later."""
    averages = StreamAverages()
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


def test_probabilities_stay_probabilities():
    averages = StreamAverages()
    averages.hits = [[32.0, 32.0], [32.0, 32.0]]
    trunk, _ = guessed(averages)
    for level in trunk:
        found = [math.exp(p) for _, p in level]
        assert max(found) <= 0.99 and sum(found) <= 0.995 + 1e-9


def test_without_guesses_there_is_nothing():
    averages = StreamAverages()
    averages.take(NO_GUESSES)
    assert averages.behind(()) == []
    averages.accept([1, 2])
