"""The texts that benchmarks decode, and what an answer is worth."""

import pytest
from specstream_mlx.benchmarks.texts import (
    INSTRUCTIONS,
    TYPED,
    Texts,
    exact_match,
    rouge_l,
    task_items,
)

from specstream_mlx import load
from specstream_mlx.prompts import chat_prompt


@pytest.mark.parametrize("name", ["dev", "test"])
def test_every_task_has_typed_texts_with_answers(name):
    assert {path.stem for path in (TYPED / name).glob("*.jsonl")} == set(INSTRUCTIONS)
    for task in INSTRUCTIONS:
        items = task_items(name, task, 1000)
        assert len(items) >= 64
        assert all(text.strip() and answers for text, answers in items)


def test_the_instruction_is_the_adapters_or_the_tasks(base, streams, shared):
    model, tokenizer = load(base, adapter_path=streams)
    (told,) = Texts("dev", 1).of_task(model, tokenizer, "sql")
    ((text, answers),) = task_items("dev", "sql", 1)
    assert told.answers == tuple(answers)
    assert told.prompt == chat_prompt(tokenizer, f"{INSTRUCTIONS['sql']}\n{text}")
    model.swap_adapter(shared)
    (raw,) = Texts("dev", 1).of_task(model, tokenizer, "sql")
    assert raw.prompt == chat_prompt(tokenizer, text)
    own = Texts("mine.txt", 5, ("hello", "there"))
    assert [t.prompt for t in own.of_task(model, tokenizer, "mine")] == [
        chat_prompt(tokenizer, "hello"),
        chat_prompt(tokenizer, "there"),
    ]
    assert own.facts() == {"texts": "prompts of mine.txt", "items": 2}
    assert Texts("test", 3).facts() == {"texts": "typed texts (test)", "items": 3}


def test_the_closest_of_several_answers_counts():
    assert exact_match(["a ", "b"], [("x", "a"), ("x",)]) == 0.5
    assert rouge_l(["one two"], [("three", "one two three four")]) == pytest.approx(2 / 3)
    assert rouge_l(["one two"], [("three",)]) == 0
