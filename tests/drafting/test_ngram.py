"""The n-gram index against a search through the whole text, and what lookup learns."""

import math

import numpy as np
import pytest

from specstream_mlx.drafting.ngram import Lookup, NGramIndex
from specstream_mlx.drafting.proposer import Material


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
@pytest.mark.parametrize("vocab_size", [1, 2, 4, 30])
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
    rng = np.random.default_rng(0)
    source = rng.permutation(200).tolist()
    copied, departed = Lookup(Material(source), 4), Lookup(Material(source), 4)
    copied.accept(source[:100])
    before = Lookup(Material([*source, *source[:100]]), 4).children(())[0]
    after = copied.children(())[0]
    assert after[0] == before[0] == source[100]
    assert after[1] > before[1]
    assert math.exp(after[1]) > 0.9
    for token in source[0:100:2]:  # every token is known, and never after the one before
        departed.accept([token])
    assert departed.children(())[0][0] == source[99]
    assert math.exp(departed.children(())[0][1]) < 0.1


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
