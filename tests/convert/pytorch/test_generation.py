"""What a model writes in PyTorch, many texts at once, is what it writes one at a time."""

import random
from itertools import pairwise

import pytest
from asking_base import WORDS, asking_base
from specstream_mlx.convert.demo_model import own_answers
from specstream_mlx.convert.pytorch import generation
from specstream_mlx.convert.pytorch.generation import AnswerWriter, WrittenAnswer
from specstream_mlx.convert.pytorch.trainer import train
from specstream_mlx.convert.pytorch.training_settings import TorchTrainSettings
from tiny_training import rows_of, write_rows

from specstream_mlx import generate, load
from specstream_mlx.prompts import chat_prompt, encode_prompt
from specstream_mlx.train.data import messages_of
from specstream_mlx.train.self_prompts import beginning


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return asking_base(tmp_path_factory.mktemp("words") / "base")


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    monkeypatch.setattr(generation, "is_quick_in_bf16", lambda _: False)


def words(count):
    rng = random.Random(count)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("at_once", [60, 1 << 13])
def test_answers_are_those_of_the_runtime(at_once, base, monkeypatch):
    """As many at once as the caches hold, to single prompts and after earlier turns."""
    monkeypatch.setattr(generation, "TOKENS_AT_ONCE", at_once)
    writer = AnswerWriter(base)
    model, tokenizer = load(base)
    prompts = [chat_prompt(tokenizer, text, "de {text} ki") for text in words(12)]
    turns = messages_of(["lolo", "mumu dede", "ba ba"])
    prompts += [encode_prompt(tokenizer, turns), [5] * 2048]
    *found, too_long = writer.answers(prompts, 8)
    assert too_long == WrittenAnswer("", True)
    for prompt, answer in zip(prompts, found, strict=False):
        assert answer.text == generate(model, tokenizer, prompt, max_tokens=8)


def test_answers_are_those_of_the_lora(base, tmp_path):
    line = {"prompt": "ba", "completion": "mumu dede lolo"}
    data = write_rows(tmp_path / "train.jsonl", 20 * [line])
    chosen = {"model": base, "data": data, "output": tmp_path / "out", "bf16": False}
    chosen |= {"iters": 30, "learning_rate": 2e-2, "batch_size": 4}
    writer = AnswerWriter(base, train(TorchTrainSettings(**chosen, lora_alone=True, lora_rank=4)))
    assert writer.answers([chat_prompt(writer.tokenizer, "ba")], 12) == [("mumu dede lolo", True)]


def test_draws_keep_their_openings_and_begin_differently(base):
    """After a passage, what is said about it alone is judged: a passage repeats words."""
    writer = AnswerWriter(base)
    openings = ["", *10 * ["baba lolo"], *[f"{word} " for word in WORDS]]
    kept = writer.draw(openings, seed=3)
    assert len(kept) > 8 and len({beginning(text) for text in kept}) == len(kept)
    assert any(text.startswith("baba lolo ") for text in kept)
    assert writer.draw(openings, seed=3) == kept != writer.draw(openings, seed=4)
    passages = [f"{word} {30 * 'baba '}\n" for word in WORDS]
    kept = writer.draw(passages, 0)
    assert len(kept) > 8
    assert all(any(text.startswith(passage) for passage in passages) for text in kept)


def varied(writer, prompts, most_tokens, *, sampled=False):
    """Answers in the place of the tiny base's, which are all the same."""
    texts = (" ".join(random.Random(str(prompt)).choices(WORDS, k=6)) for prompt in prompts)
    return [
        WrittenAnswer(text, len(prompt) % 2 == 0)
        for text, prompt in zip(texts, prompts, strict=True)
    ]


def test_the_base_answers_what_it_asks_and_goes_on_where_it_was_stopped(
    base, tmp_path, monkeypatch
):
    monkeypatch.setattr(own_answers, "_AT_ONCE", 7)
    monkeypatch.setattr(own_answers, "read_prompts", lambda _: ["dede lolo mumu", "kiki ba"])
    monkeypatch.setattr(own_answers, "_is_passage", lambda text: len(text.split()) > 2)
    monkeypatch.setattr(AnswerWriter, "answers", varied)
    for name in ("train.jsonl", "valid.jsonl"):  # of people, whose last line is the last
        write_rows(tmp_path / name, [{"prompt": name, "source": "people"}])
    writer, arguments = AnswerWriter(base), (60, 0, tmp_path)
    own_answers.write_base_answers(writer, tmp_path / "whole", *arguments)
    learned, tried = (rows_of(tmp_path / "whole" / name) for name in ("train.jsonl", "valid.jsonl"))
    assert len(learned) > len(tried) > 1
    assert [rows.pop()["source"] for rows in (learned, tried)] == ["people", "people"]
    requests = [row for row in learned if row["prompt"].startswith(own_answers._REQUESTS)]
    questions = [row for row in learned if "\n" in row["prompt"] and row not in requests]
    assert requests and questions
    assert {row["prompt"] for row in learned}.isdisjoint(row["prompt"] for row in tried)
    answers = [row["completion"] for row in learned]
    assert all(row["prompt"].split("\n")[0] in answers for row in questions)

    calls, halting = [], tmp_path / "halting"

    def stopped(*arguments, **values):
        calls.append(arguments)
        if len(calls) == 3:
            raise InterruptedError
        return varied(*arguments, **values)

    monkeypatch.setattr(AnswerWriter, "answers", stopped)
    with pytest.raises(InterruptedError):
        own_answers.write_base_answers(writer, halting, *arguments)
    assert not halting.exists()
    own_answers.write_base_answers(writer, halting, *arguments)
    for name in ("train.jsonl", "valid.jsonl"):
        assert (halting / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_prompts_that_people_wrote_are_answered_turn_by_turn(base, tmp_path, monkeypatch):
    monkeypatch.setattr(own_answers, "_AT_ONCE", 4)
    monkeypatch.setattr(own_answers, "PROMPTED_TOKENS", 24)
    wanted = [{"prompt": prompt, "source": "single"} for prompt in words(7)]
    wanted.append({"turns": ["baba", "lolo ki", "mumu"], "source": "talk"})
    prompts = write_rows(tmp_path / "prompts.jsonl", wanted)
    writer, given = AnswerWriter(base), (prompts, tmp_path / "answers", 0)
    paths = own_answers.write_prompted_answers(writer, *given)
    found = [row for path in paths for row in rows_of(path)]
    talk = [row for row in found if row["source"] == "talk"]
    assert [row["prompt"] for row in talk] == ["baba", "lolo ki", "mumu"]
    for before, after in pairwise(talk):
        assert after["earlier"] == [*before["earlier"], before["prompt"], before["completion"]]
    monkeypatch.setattr(writer, "answers", None)  # parts that are there are not made again
    assert own_answers.write_prompted_answers(writer, *given) == paths
