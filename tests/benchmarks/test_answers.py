"""The scores of answers, and of drafts."""

from types import SimpleNamespace

import mlx.core as mx
import pytest

from benchmarks.answers import drafted, perplexity, quality
from benchmarks.runner import Run
from benchmarks.texts import Text


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


def test_depths_count_calls_that_accepted_as_many_drafts():
    found = drafted([Run([1] * 6, "", 3, 1.0, lengths=[3, 1, 2])])
    assert found["depths"] == [pytest.approx(2 / 3), pytest.approx(1 / 3), 0, 0]
    assert found["call_reduction"] == 2
