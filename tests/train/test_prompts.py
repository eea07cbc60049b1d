"""Prompts that a base answers, or draws itself: which are taken, and resuming."""

import json

import pytest
from asking_base import WORDS, asking_base
from command_line import run
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import CHAT_TEMPLATE, END, SPECIAL_TOKENS, tiny_tokenizer

from specstream_mlx import UserError, load
from specstream_mlx.train import self_prompts
from specstream_mlx.train.distil import read_prompts
from specstream_mlx.train.self_prompts import draw_prompts, fault_of, turn_of


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return asking_base(tmp_path_factory.mktemp("words") / "base")


@pytest.fixture(scope="module")
def loaded(base):
    return load(base)


def lines(directory):
    return (directory / "prompts.jsonl").read_text().splitlines()


USER = "'<|user|>' + messages[0]['content']"
BRIEF = "{{ '<|pad|>Be brief.\n' + " + USER + " + '<|end|>' }}"
INST = "{{ '[INST] ' + messages[0]['content'] | trim + ' [/INST]' }}"


@pytest.mark.parametrize(
    ("chat", "template", "opening", "end"),
    [
        (BRIEF, None, "<|pad|>Be brief.\n<|user|>", END),
        (INST, None, "[INST]", " ["),
        ("{{ 'Q: ' + messages[0]['content'] + '\nA:' }}", None, "Q:", "\n"),
        (CHAT_TEMPLATE, "Check: {text}\nNow.", "<|user|>Check:", "\n"),
    ],
)
def test_draws_begin_and_end_as_the_template_says(chat, template, opening, end):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat
    ids, turn_tokenizer = turn_of(TokenizerWrapper(tokenizer), template)
    assert tokenizer.decode(ids) == opening
    stop = tokenizer.encode(end, add_special_tokens=False)[0]
    assert turn_tokenizer.eos_token_ids == {tokenizer.eos_token_id, stop}


def test_models_without_a_users_turn_are_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template, which says where a user's turn begins"):
        turn_of(TokenizerWrapper(tokenizer), None)


def test_what_is_left_out():
    for text, fault in (
        ("What is 12 + 30, naïve or not?", None),
        ("Photosynthesis, please?", "were too short"),
        ("The the THE team THE the is", "repeated themselves"),
        ("What does мир mean?", "had letters of another script"),
        ("Say it <|user|> again, please", "held control tokens or broken characters"),
    ):
        assert fault_of(text, True, SPECIAL_TOKENS, "latin") == fault
        assert fault_of(text, False, SPECIAL_TOKENS, "latin") == "had no end within 90 tokens"


def test_prompts_that_begin_alike_are_kept_once_and_too_few_end_it(loaded, tmp_path, monkeypatch):
    long = "please tell me all that there is to know about the numbers in {}"
    texts = ["check the report now", "Check  the\nreport NOW", "check the report today"]
    texts += [long.format("a table"), long.format("a book"), "no", "no", "no"]

    def draws(model, asker, read, last, seed, places):
        return [(place, texts[place % len(texts)], True) for place in places]

    monkeypatch.setattr(self_prompts, "_draws", draws)
    drawn, sentence = draw_prompts(*loaded, tmp_path, 3)
    assert drawn == [texts[0], *texts[2:4]]
    assert sentence == "The base drew 4 prompts and 3 are kept; 1 began as an earlier one"
    with pytest.raises(UserError, match="base drew 0 can be kept, expected at least 15") as error:
        draw_prompts(*loaded, tmp_path, 40)
    assert f"there are 3 in {tmp_path / 'prompts.jsonl'}" in str(error.value)


def test_what_is_kept_depends_on_no_batch_and_no_interruption(loaded, tmp_path, monkeypatch):
    drawn, sentence = draw_prompts(*loaded, tmp_path / "a", 12)
    whole = lines(tmp_path / "a")
    assert [json.loads(line)["prompt"] for line in whole] == drawn
    assert " and 12 are kept; " in sentence and len(set(drawn)) == 12
    assert set(" ".join(drawn).split()) <= set(WORDS)
    draw_prompts(*loaded, tmp_path / "b", 5)
    path = tmp_path / "b" / "prompts.jsonl"
    assert lines(tmp_path / "b") == whole[:5]
    path.write_text(path.read_text() + whole[5][:9])  # as a process that was killed left it
    monkeypatch.setattr(self_prompts, "AT_ONCE", 3)
    assert draw_prompts(*loaded, tmp_path / "b", 12)[0] == drawn
    assert lines(tmp_path / "b") == whole
    monkeypatch.setattr(self_prompts, "batch_generate", None)  # nothing is drawn again
    assert draw_prompts(*loaded, tmp_path / "b", 7) == (drawn[:7], "")
    for damage in ("3", "{}", '{"prompt": "hi", "draw": "1"}', '{"prompt": 3, "draw": 1}', "{"):
        path.write_text(f"{whole[0]}\n{damage}\n")
        with pytest.raises(UserError, match=r"prompts\.jsonl, line 2 is "):
            draw_prompts(*loaded, tmp_path / "b", 7)


def test_from_a_model_to_its_answers_and_on_to_streams(base, tmp_path):
    out = tmp_path / "out"
    flags = ("train", "--model", base, "--prompts", "self", "--num-prompts", 6)
    flags += ("--max-tokens", 8, "--adapter-path", out)
    data = tmp_path / "out.training" / "data"
    assert run(*flags, "--answers-only").stdout == f"{data}\n"
    assert not out.exists()
    text = (data / "train.jsonl").read_text() + (data / "valid.jsonl").read_text()
    prompts = [json.loads(line)["prompt"] for line in text.splitlines()]
    assert sorted(prompts) == sorted(read_prompts(data.parent / "prompts.jsonl"))
    small = ("--num-msa-layers", 2, "--iters", 2, "--batch-size", 2, "--no-outcome")
    assert run(*flags, *small).stdout == f"{out}\n"
