"""Streams' probabilities and lookup's: corrected by what has come of them, and pooled."""

import math

import numpy as np
import pytest

from specstream_mlx.drafting.calibration import MOST_TOGETHER, StreamAverages, pooled
from specstream_mlx.drafting.ngram import Lookup, NGramIndex
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.engine.guess import StreamGuesses

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


def test_what_was_long_ago_counts_less_and_probabilities_stay_probabilities():
    averages = StreamAverages()
    for _ in range(200):
        averages.take(guesses(slice(1)))
        averages.accept([9])
    assert averages.expected[TRUNK][FIRST] == pytest.approx(16)
    assert averages.factor(TRUNK, 0) < 0.01
    averages.hits = [[32.0, 32.0], [32.0, 32.0]]
    trunk, _ = guessed(averages)
    for level in trunk:
        found = [math.exp(p) for _, p in level]
        assert max(found) <= 0.99 and sum(found) <= MOST_TOGETHER + 1e-9


def together(streams, found):
    """Pooled probabilities of probabilities by token."""
    streams, found = ([(t, math.log(p)) for t, p in given.items()] for given in (streams, found))
    return {token: math.exp(score) for token, score in pooled(streams, found)}


def test_odds_multiply():
    found = together({3: 0.5, 4: 0.3}, {4: 0.6})
    total = 3.6 + 0.2 + 0.08  # 0.3 * 0.6 / 0.05, 0.5 * 0.4, and 0.2 * 0.4 for all other tokens
    assert found == pytest.approx({3: 0.2 / total, 4: 3.6 / total})
    # Next to nothing, or a little more than one, may be left.
    streams = [(3, math.log(MOST_TOGETHER)), (4, -math.inf)]
    for token in (4, 5):
        assert set(dict(pooled(streams, [(token, math.log(0.5))]))) == {3, token}
    certain = [(5, math.log1p(1e-15)), (7, math.log(1e-17))]
    assert dict(pooled([(5, math.log(0.9)), (6, math.log(0.05))], certain))[5] == 0.0
    assert dict(pooled(certain, [(6, math.log(0.5))]))[5] == 0.0


def naive_following(text, path, longest, count):
    """``NGramIndex.following`` by searching the text backwards for every length."""
    context = [*text, *path]
    for length in range(min(longest, len(context)), 0, -1):
        pattern, found = context[-length:], []
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == pattern and text[start + length] not in found:
                found.append(text[start + length])
        if found:
            return length, tuple(found[:count])
    return 0, ()


@pytest.mark.parametrize("longest", [1, 2, 4])
@pytest.mark.parametrize("vocab_size", [1, 4, 30])
def test_index_finds_what_a_search_finds(vocab_size, longest):
    rng = np.random.default_rng(vocab_size)
    for _ in range(20):
        text = rng.integers(0, vocab_size, rng.integers(0, 40)).tolist()
        count = int(rng.integers(1, 4))
        index, seen = NGramIndex(longest, count), []
        while True:  # the same text in chunks of any length, asked after each
            for _ in range(3):
                path = rng.integers(0, vocab_size, rng.integers(0, 6)).tolist()
                assert index.following(path) == naive_following(seen, path, longest, count)
            chunk = text[len(seen) : len(seen) + int(rng.integers(1, 6))]
            if not chunk:
                break
            index.extend(chunk)
            seen += chunk


def test_rates_follow_what_the_target_writes():
    """Copied text raises them, text that departs lowers them, also where nothing was drafted."""
    source = np.random.default_rng(0).permutation(200).tolist()
    copied, departed = (Lookup(Material(source), 4) for _ in range(2))
    copied.accept(source[:100])
    departed.accept(source[0:100:2])  # every token is known, and never after the one before
    for lookup, token, least, most in ((copied, 100, 0.9, 1.0), (departed, 99, 0.0, 0.1)):
        [(found, log_prob), *_] = lookup.children(())
        assert found == source[token] and least < math.exp(log_prob) < most


def test_continuations_of_one_match_sum_to_less_than_one():
    """Ranks are averaged over different tokens: first 2 is always right, then the token before."""
    lookup, sums = Lookup(Material([1, 2]), 1), []
    for token in [2] * 60 + [3, 2] * 30:
        lookup.accept([1, token])
        sums.append(sum(math.exp(score) for _, score in lookup.children((1,))))
    assert max(sums) == pytest.approx(0.99)
    lookup = Lookup(Material([1]), 1)
    for token in range(2, 6000):  # always wrong: the rate underflows
        lookup.accept([token, 1])
    assert math.isfinite(lookup.children(())[0][1])
