"""What a model writes in PyTorch, many texts at once, is what it writes one at a time."""

import json
import random

import pytest
from asking_base import WORDS, asking_base
from specstream_mlx.convert.demo_model import own_answers, tasks
from specstream_mlx.convert.pytorch import writing
from specstream_mlx.convert.pytorch.lora_settings import LoraSettings
from specstream_mlx.convert.pytorch.lora_trainer import train_lora
from specstream_mlx.convert.pytorch.training_data import read_pairs
from specstream_mlx.convert.pytorch.writing import Writer

from specstream_mlx import generate, load
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.train.self_prompts import beginning


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return asking_base(tmp_path_factory.mktemp("words") / "base")


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """Two rows of one batch are then told apart by more than rounding."""
    monkeypatch.setattr(writing, "is_quick_in_bf16", lambda _: False)


def said(count):
    rng = random.Random(count)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("at_once", [30, 100, 1 << 13])
def test_answers_are_those_of_the_runtime(at_once, base, monkeypatch):
    monkeypatch.setattr(writing, "TOKENS_AT_ONCE", at_once)
    prompts = said(20)
    found = Writer(base).answers(prompts, "de {text} ki", 12)
    model, tokenizer = load(base)
    for prompt, answer in zip(prompts, found, strict=True):
        tokens = chat_prompt(tokenizer, prompt, "de {text} ki")
        assert answer.text == generate(model, tokenizer, tokens, max_tokens=12)


def test_answers_are_those_of_the_lora(base, tmp_path):
    data = tmp_path / "train.jsonl"
    line = {"prompt": "ba", "completion": "mumu dede lolo"}
    data.write_text(20 * (json.dumps(line) + "\n"))
    chosen = {"model": base, "data": data, "bf16": False, "iters": 30, "learning_rate": 2e-2}
    lora = train_lora(LoraSettings(output=tmp_path / "out", batch_size=4, lora_rank=4, **chosen))
    (answer,) = Writer(base, lora).answers(["ba"], None, 12)
    assert (answer.text, answer.ended) == ("mumu dede lolo", True)


def test_as_many_texts_are_written_at_once_as_the_caches_hold(base, monkeypatch):
    monkeypatch.setattr(writing, "TOKENS_AT_ONCE", 60)
    writer, rows = Writer(base), []
    generated = writer._model.generate
    monkeypatch.setattr(
        writer._model,
        "generate",
        lambda tokens, **values: rows.append(tokens.shape) or generated(tokens, **values),
    )
    writer.answers(said(12), None, 8)
    assert sum(count for count, _ in rows) == 12 and len(rows) > 2
    assert all(count == 1 or count * (width + 8) <= 60 for count, width in rows)


def test_draws_keep_their_openings_and_begin_differently(base):
    writer = Writer(base)
    openings = ["", *10 * ["baba lolo"], *[f"{word} " for word in WORDS]]
    kept = writer.draw_prompts(openings, seed=3)
    assert len(kept) > 8 and len({beginning(text) for text in kept}) == len(kept)
    assert any(text.startswith("baba lolo ") for text in kept)
    assert all(set(text.split()) <= set(WORDS) and len(text.split()) > 2 for text in kept)
    assert writer.draw_prompts(openings, seed=3) == kept != writer.draw_prompts(openings, seed=4)


def test_a_question_about_a_passage_is_judged_without_it(base):
    """A passage repeats words, which a draw may not."""
    passage = 30 * "baba " + "\n\n"
    kept = Writer(base).draw_prompts([passage + word for word in WORDS], 0)
    assert kept and all(text.startswith(passage) for text in kept)


def test_the_base_answers_what_it_asks(base, tmp_path, monkeypatch):
    monkeypatch.setattr(own_answers, "read_prompts", lambda _: ["dede lolo mumu", "kiki ba"])
    monkeypatch.setattr(own_answers, "_HELD_OUT", 4)
    own_answers.write_own_answers(Writer(base), tmp_path / "answers", 40, 0)
    learned, tried = (
        read_pairs(tmp_path / "answers" / f"{name}.jsonl") for name in ("train", "valid")
    )
    assert len(learned) > len(tried) > 0
    assert not {pair.prompt for pair in learned} & {pair.prompt for pair in tried}
    every = [pair.prompt for pair in learned + tried]
    assert any(prompt.startswith(own_answers._REQUESTS) for prompt in every)
    assert any("\n\n" in prompt for prompt in every)
    one = next(pair for pair in learned if not pair.prompt.startswith(own_answers._REQUESTS))
    (again,) = Writer(base).answers([one.prompt], None, own_answers.ANSWER_TOKENS)
    assert (again.text, not again.ended) == (one.completion, one.cut)


def test_a_tasks_answers_have_its_instruction(base, tmp_path):
    path = tmp_path / "answers.jsonl"
    own_answers.write_answers_of(Writer(base), path, "concise", ["ba", "lolo"], 6)
    expected = Writer(base).answers(["ba", "lolo"], tasks.prompt_template("concise"), 6)
    found = {pair.prompt: pair.completion for pair in read_pairs(path)}
    assert found == {
        prompt: answer.text
        for prompt, answer in zip(("ba", "lolo"), expected, strict=True)
        if answer.text
    }
