"""The texts that benchmarks decode, and the scores of answers."""

from types import SimpleNamespace

import mlx.core as mx
import pytest

from benchmarks.answers import drafted, perplexity, quality
from benchmarks.runner import TimedRun
from benchmarks.texts import INSTRUCTIONS, Text, Texts, task_items
from specstream_mlx import load
from specstream_mlx.prompts import chat_prompt


def test_the_instruction_is_the_adapters_or_the_tasks(base, streams, shared):
    model, tokenizer = load(base, adapter_path=streams)
    ((text, answers),) = task_items("dev", "sql", 1)
    (instructed,) = Texts("dev", 1).of_task(model, tokenizer, "sql")
    assert instructed.answers == tuple(answers)
    assert instructed.prompt == chat_prompt(tokenizer, f"{INSTRUCTIONS['sql']}\n{text}")
    model.swap_adapter(shared)
    (raw,) = Texts("dev", 1).of_task(model, tokenizer, "sql")
    assert raw.prompt == chat_prompt(tokenizer, text)


def test_the_closest_of_several_answers_counts():
    items = [
        ("It are late", ["It is late", "It's late"]),
        ("All is well", ["All is well"]),
        ("Bob ask Ann", ["Bob asks Ann"]),
    ]
    found = quality(["It\u2019s  late", "All is well", "Bob asks Tom"], items)
    assert (found["exact"], found["unchanged"]) == (pytest.approx(2 / 3), 1.0)
    assert found["rouge_l"] == pytest.approx((1 + 1 + 2 / 3) / 3)


def test_perplexity_is_that_of_the_likeliest_accepted_answer():
    """A model over four tokens expects the next one, with probability 1/2; 3 ends a text."""

    def next_number(tokens):
        likely = (tokens[..., None] + 1) % 4 == mx.arange(4)
        return mx.where(likely, mx.log(mx.array(1 / 2)), mx.log(mx.array(1 / 6)))

    digits = SimpleNamespace(eos_token_id=3, encode=lambda text, **_: list(map(int, text)))
    items = [Text([0], ("12", "0")), Text([0, 1], ("0",))]
    # "12" and its end: three times 1/2; "0": twice 1/6
    found = perplexity(SimpleNamespace(plain=next_number, tokenizer=digits), items)
    assert found == pytest.approx((2**3 * 6**2) ** (1 / 5))


def test_depths_count_calls_that_accepted_as_many_drafts():
    found = drafted([TimedRun([1] * 6, "", 3, 1.0, lengths=[3, 1, 2])])
    assert found["depths"] == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert found["call_reduction"] == 2
