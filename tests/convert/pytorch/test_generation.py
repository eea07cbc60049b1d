"""What a model writes in PyTorch, many texts at once, is what it writes one at a time."""

import json
import random
import shutil
from itertools import pairwise

import pytest
import torch
from asking_base import WORDS, asking_base
from specstream_mlx.convert.demo_model import own_answers, tasks
from specstream_mlx.convert.pytorch import generation
from specstream_mlx.convert.pytorch.generation import Writer
from specstream_mlx.convert.pytorch.lora_trainer import train_lora
from specstream_mlx.convert.pytorch.training_data import Pair, read_pairs
from specstream_mlx.convert.pytorch.training_settings import LoraSettings
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specstream_mlx import UserError, generate, load
from specstream_mlx.prompts import chat_prompt, encode_prompt
from specstream_mlx.train.self_prompts import beginning


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return asking_base(tmp_path_factory.mktemp("words") / "base")


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """Two rows of one batch are then told apart by more than rounding."""
    monkeypatch.setattr(generation, "is_quick_in_bf16", lambda _: False)


def said(count):
    rng = random.Random(count)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("at_once", [30, 100, 1 << 13])
def test_answers_are_those_of_the_runtime(at_once, base, monkeypatch):
    monkeypatch.setattr(generation, "TOKENS_AT_ONCE", at_once)
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
    monkeypatch.setattr(generation, "TOKENS_AT_ONCE", 60)
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
    passages = [f"{30 * 'baba '}{word}" for word in WORDS]
    kept = Writer(base).draw_questions(passages, 0)
    assert kept and len({beginning(text) for text in kept}) == len(kept) == 1  # all begin alike
    passages = [f"{word} {30 * 'baba '}" for word in WORDS]
    kept = Writer(base).draw_questions(passages, 0)
    assert len(kept) > 8
    assert all(any(text.startswith(f"{passage}\n") for passage in passages) for text in kept)


def test_drawing_needs_a_chat_template(base, tmp_path):
    copy = shutil.copytree(base, tmp_path / "plain")
    (copy / "chat_template.jinja").unlink()
    writer = Writer(copy)
    assert [answer.text for answer in writer.answers(["baba"], None, 3)] != [""]
    with pytest.raises(UserError, match="no chat template"):
        writer.draw_prompts([""], 0)


def varied(_, prompts, template, most_tokens):
    """Answers in the place of the tiny base's, which are all the same."""
    return [
        generation.Written(" ".join(random.Random(p).choices(WORDS, k=6)), len(p) % 2 == 0)
        for p in prompts
    ]


@pytest.fixture
def small(monkeypatch):
    """Parts of the demonstration model's answers that a model of whole words can do."""
    monkeypatch.setattr(Writer, "answers", varied)
    monkeypatch.setattr(own_answers, "read_prompts", lambda _: ["dede lolo mumu", "kiki ba"])
    monkeypatch.setattr(own_answers, "_FEWEST_WORDS", 3)
    monkeypatch.setattr(own_answers, "_is_passage", lambda text: len(text.split()) > 2)


def test_the_base_answers_what_it_asks(small, base, tmp_path):
    own_answers.write_own_answers(Writer(base), tmp_path / "answers", 60, 0)
    learned, tried = (
        read_pairs(tmp_path / "answers" / name) for name in ("train.jsonl", "valid.jsonl")
    )
    assert len(learned) > len(tried) > 0
    requests = [pair for pair in learned if pair.prompt.startswith(own_answers._REQUESTS)]
    questions = [pair for pair in learned if "\n" in pair.prompt and pair not in requests]
    assert requests and questions
    own = {pair.prompt for pair in learned if pair not in requests + questions}
    assert own.isdisjoint(pair.prompt for pair in tried)
    answers = [pair.completion for pair in learned]
    assert all(pair.prompt.split("\n")[0] in answers for pair in questions)
    assert not any(
        answer.completion in pair.prompt for pair in requests + questions for answer in tried
    )
    for pair in learned:
        (answer,) = varied(None, [pair.prompt], None, 12)
        assert (answer.text, not answer.ended) == (pair.completion, pair.cut)
    assert not (tmp_path / "answers-unfinished").exists()


def test_answers_go_on_where_they_were_stopped(small, base, tmp_path, monkeypatch):
    monkeypatch.setattr(own_answers, "_AT_ONCE", 7)
    own_answers.write_own_answers(Writer(base), tmp_path / "whole", 60, 0)
    writer, calls = Writer(base), []
    answers = writer.answers

    def stopped(*arguments):
        calls.append(len(arguments[0]))
        if len(calls) in (3, 8):
            raise InterruptedError
        return answers(*arguments)

    monkeypatch.setattr(writer, "answers", stopped)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            own_answers.write_own_answers(writer, tmp_path / "halting", 60, 0)
        assert not (tmp_path / "halting").exists()
    with pytest.raises(UserError, match="seed was 0"):
        own_answers.write_own_answers(writer, tmp_path / "halting", 60, 1)
    own_answers.write_own_answers(writer, tmp_path / "halting", 60, 0)
    for name in ("train.jsonl", "valid.jsonl"):
        found, expected = (read_pairs(tmp_path / run / name) for run in ("halting", "whole"))
        assert found == expected


def test_a_tasks_answers_have_its_instruction(base, tmp_path):
    said = ["ba", "lolo", "mumu de", "kiki"]
    own_answers.write_answers_of(Writer(base), tmp_path / "answers", "concise", said)
    template = tasks.prompt_template("concise")
    expected = Writer(base).answers(said, template, own_answers.TASK_ANSWER_TOKENS)
    found = {}
    for name in ("train.jsonl", "valid.jsonl"):
        found |= {p.prompt: p.completion for p in read_pairs(tmp_path / "answers" / name)}
    assert found == {prompt: answer.text for prompt, answer in zip(said, expected, strict=True)}


def test_a_reply_is_what_the_runtime_says_after_the_earlier_turns(base, monkeypatch):
    turns = [(said(1)[0], "mumu dede", said(2)[1]), (said(3)[2],)]
    conversations = [Pair(turn[-1], "", earlier=turn[:-1]).messages() for turn in turns]
    found = Writer(base).replies(conversations, 12)
    model, tokenizer = load(base)
    for conversation, answer in zip(conversations, found, strict=True):
        tokens = encode_prompt(tokenizer, conversation)
        assert answer.text == generate(model, tokenizer, tokens, max_tokens=12)
    read = []
    writer = Writer(base)
    monkeypatch.setattr(writer, "_generated", lambda prompts, *_, **__: read.extend(prompts) or [])
    with pytest.raises(ValueError):  # as no answer comes
        writer.replies(conversations, 12)
    assert read == [encode_prompt(tokenizer, conversation) for conversation in conversations]


def test_prompts_that_people_wrote_are_answered_turn_by_turn(base, tmp_path, monkeypatch):
    monkeypatch.setattr(own_answers, "_AT_ONCE", 4)
    wanted = [{"prompt": prompt, "source": "single"} for prompt in said(7)]
    wanted.append({"turns": ["baba", "lolo ki", "mumu"], "source": "talk"})
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in wanted))
    writer = Writer(base)
    own_answers.write_prompted_answers(writer, prompts, tmp_path / "answers.jsonl", 0)
    pairs = read_pairs(tmp_path / "answers.jsonl")
    talk = [pair for pair in pairs if pair.source == "talk"]
    assert [pair.prompt for pair in talk] == ["baba", "lolo ki", "mumu"]
    for before, after in pairwise(talk):
        assert after.earlier == (*before.earlier, before.prompt, before.completion)
    greedy = [pair for pair in pairs if pair.source == "single" and pair.prompt in said(7)[1:4]]
    assert len(greedy) == 3
    for pair in greedy:
        (answer,) = writer.replies([pair.messages()], own_answers.PROMPTED_TOKENS)
        assert answer.text == pair.completion
    before = (tmp_path / "answers.jsonl").read_bytes()
    monkeypatch.setattr(writer, "replies", None)  # parts that are there are not made again
    own_answers.write_prompted_answers(writer, prompts, tmp_path / "answers.jsonl", 0)
    assert (tmp_path / "answers.jsonl").read_bytes() == before
    prompts.write_text(prompts.read_text().replace("mumu", "dede"))
    with pytest.raises(UserError, match="prompts was"):
        own_answers.write_prompted_answers(writer, prompts, tmp_path / "answers.jsonl", 0)


@pytest.mark.parametrize("length", [1, 3])
def test_grouped_attention_is_that_of_transformers(length):
    torch.manual_seed(0)
    query = torch.randn(2, 6, length, 8)
    key, value = torch.randn(2, 2, 2, 7, 8)
    mask = torch.ones(2, 1, length, 7, dtype=torch.bool)
    mask[0, ..., :3] = False
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    arguments = module, query, key, value, mask
    found, _ = generation.grouped_attention(*arguments, scaling=0.3)
    expected, _ = sdpa_attention_forward(*arguments, scaling=0.3)
    assert torch.allclose(found, expected, atol=1e-6)
