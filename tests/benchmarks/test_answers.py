"""The scores of answers, and who is credited with an accepted draft."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.answers import by_lookup, drafted, perplexity, quality
from benchmarks.runner import Run
from benchmarks.texts import Text
from specstream_mlx.engine.guess import NO_GUESSES, StreamGuesses


def run_of(calls):
    tokens = [token for written, _ in calls for token in written]
    return Run(tokens, "", target_calls=len(calls), decode_tps=1.0, calls=calls)


def test_quality():
    items = [
        ("It are late", ["It is late", "It's late"]),
        ("All is well", ["All is well"]),
        ("Bob ask Ann", ["Bob asks Ann"]),
    ]
    found = quality(["It\u2019s  late", "All is well", "Bob asks Tom"], items)
    assert found["exact"] == pytest.approx(2 / 3)
    assert found["unchanged"] == 1.0
    assert found["rouge_l"] == pytest.approx((1 + 1 + 2 / 3) / 3)


def next_number(tokens):
    """Logits of a model over four tokens that expects the next number, with probability 1/2."""
    likely = (tokens[..., None] + 1) % 4 == mx.arange(4)
    return mx.where(likely, mx.log(mx.array(1 / 2)), mx.log(mx.array(1 / 6)))


class Digits:
    """A tokenizer of the numbers 0 to 3, of which 3 ends a text."""

    eos_token_id = 3

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [int(character) for character in text]


def test_perplexity_is_that_of_the_likeliest_accepted_answer():
    mounted = SimpleNamespace(plain=next_number, tokenizer=Digits())
    items = [Text([0], ("12", "0")), Text([0, 1], ("0",))]
    # "12" and its end: three times 1/2; "0": twice 1/6
    assert perplexity(mounted, items[:1]) == pytest.approx(2.0)
    assert perplexity(mounted, items) == pytest.approx((2**3 * 6**2) ** (1 / 5))


def test_drafts_are_lookups_where_no_stream_proposed_them():
    prompt = [1, 2, 3, 4, 9, 1, 2]  # behind 1 2 stands 3, behind 3 stands 4
    streams = StreamGuesses(np.array([[3], [7]]), np.array([[-0.1], [-0.1]]))
    assert by_lookup(prompt, run_of([((3, 4, 5), NO_GUESSES)])) == 2
    assert by_lookup(prompt, run_of([((3, 4, 5), streams)])) == 1  # 4 alone
    assert by_lookup(prompt, run_of([((3, 7, 5), streams)])) == 0
    assert by_lookup(prompt, run_of([((3,), NO_GUESSES), ((4, 8), NO_GUESSES)])) == 1


def test_depths_count_calls_that_accepted_as_many_drafts():
    calls = [((1, 2, 3), NO_GUESSES), ((4,), NO_GUESSES), ((5, 6), NO_GUESSES)]
    found = drafted([[8]], [run_of(calls)])
    assert found["depths"] == [pytest.approx(2 / 3), pytest.approx(1 / 3), 0, 0]
    assert found["call_reduction"] == 2
