"""Training data in mlx-lm's formats."""

import json

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import VOCAB_SIZE, tiny_tokenizer

from specstream_mlx import UserError
from specstream_mlx.train.data import read_split


@pytest.fixture(scope="module")
def tokenizer():
    return TokenizerWrapper(tiny_tokenizer())


@pytest.fixture
def bare():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    return TokenizerWrapper(tokenizer)


def write(path, *rows):
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


PAIR = {"prompt": "check the numbers", "completion": "the report"}
ANSWER = {**PAIR, "finish_reason": "stop"}
CHAT = {
    "messages": [
        {"role": "user", "content": "check the numbers"},
        {"role": "assistant", "content": "the report"},
    ]
}


@pytest.mark.parametrize("row", [PAIR, CHAT])
def test_prompt_and_completion_are_as_they_are_decoded(row, tokenizer, tmp_path):
    (item,) = read_split(write(tmp_path / "train.jsonl", row), tokenizer, 100, VOCAB_SIZE).items
    prompt = "<|user|>check the numbers<|end|><|assistant|>"
    assert tokenizer.decode(item.tokens[: item.stream_from]) == prompt
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the report<|end|>"


def test_an_answer_that_was_cut_has_no_end(tokenizer, tmp_path):
    row = {**PAIR, "finish_reason": "length"}
    (item,) = read_split(write(tmp_path / "train.jsonl", row), tokenizer, 100, VOCAB_SIZE).items
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the report"


def test_own_answers_follow_the_prompt_as_they_were_written(tmp_path):
    """Whatever the template makes of an earlier answer: this one drops what was thought."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|user|>{{ m.content.split('noon')[-1] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    wrapped = TokenizerWrapper(tokenizer)
    row = {"prompt": "check", "completion": "noon the report", "finish_reason": "stop"}
    (item,) = read_split(write(tmp_path / "train.jsonl", row), wrapped, 100, VOCAB_SIZE).items
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "noon the report<|end|>"
    assert tokenizer.decode(item.tokens[: item.stream_from]).endswith("<|assistant|>")


def test_own_answers_keep_their_tokens(tokenizer, tmp_path):
    """Encoded again, a text may have others."""
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "team"]
    row = {"prompt": "check", "completion": "team", "finish_reason": "stop", "tokens": letters}
    (item,) = read_split(write(tmp_path / "train.jsonl", row), tokenizer, 100, VOCAB_SIZE).items
    assert list(item.tokens[item.stream_from :]) == [*letters, tokenizer.eos_token_id]
    wrong = write(tmp_path / "wrong.jsonl", {**row, "tokens": ["x"]})
    with pytest.raises(UserError, match=r"wrong.jsonl, line 1 is "):
        read_split(wrong, tokenizer, 100, VOCAB_SIZE)


def test_a_prompt_template_needs_prompts(tokenizer, tmp_path):
    with pytest.raises(UserError, match="has messages and no prompts, expected no --prompt-templ"):
        read_split(
            write(tmp_path / "train.jsonl", CHAT), tokenizer, 100, VOCAB_SIZE, "please {text}"
        )


def test_without_a_chat_template(bare, tmp_path):
    (item,) = read_split(write(tmp_path / "train.jsonl", PAIR), bare, 100, VOCAB_SIZE).items
    assert bare.decode(item.tokens) == "check the numbersthe report<|end|>"
    with pytest.raises(UserError, match="has messages, and the tokenizer no chat template"):
        read_split(write(tmp_path / "train.jsonl", CHAT), bare, 100, VOCAB_SIZE)


def test_a_text_has_no_prompt(tokenizer, tmp_path):
    (item,) = read_split(
        write(tmp_path / "a.jsonl", {"text": "the team"}), tokenizer, 100, VOCAB_SIZE
    ).items
    assert item.stream_from == 1
    assert tokenizer.decode(item.tokens) == "the team<|end|>"


def test_a_prompt_template_is_put_around_prompts(tokenizer, tmp_path):
    path = write(tmp_path / "train.jsonl", PAIR)
    (item,) = read_split(path, tokenizer, 100, VOCAB_SIZE, "please {text}, now").items
    assert "please check the numbers, now" in tokenizer.decode(item.tokens)


def test_long_sequences_are_left_out(tokenizer, tmp_path):
    path = write(tmp_path / "train.jsonl", PAIR, {**PAIR, "completion": "noon " * 40})
    found = read_split(path, tokenizer, 30, VOCAB_SIZE)
    assert (len(found.items), found.too_long) == (1, 1)
    assert tokenizer.decode(found.items[0].tokens).endswith("the report<|end|>")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "is empty, expected a JSON object on each line"),
        (['{"prompt": '], "line 1 is not valid JSON"),
        ([PAIR, '{"prompt": '], "line 2 is not valid JSON"),
        ([PAIR, {"prompt": "x"}], "line 2 is {'prompt': 'x'}, expected a prompt and a completion"),
        ([PAIR, {"text": "x"}], "line 2 is {'text': 'x'}, expected as in the first line"),
        ([[1]], r"line 1 is \[1\], expected a prompt and a completion, messages of which"),
        ([{"messages": CHAT["messages"][:1]}], "line 1 is "),
        ([PAIR, {**ANSWER, "tokens": [VOCAB_SIZE]}], f"line 2 holds token {VOCAB_SIZE}, the model"),
        ([{**ANSWER, "tokens": [10**30]}], f"line 1 holds token {10**30}, the model's are 0 to"),
        ([{**PAIR, "completion": "noon " * 90}], "has no sequence of at most 50 tokens with"),
    ],
)
def test_bad_lines(rows, sentence, tokenizer, tmp_path):
    with pytest.raises(UserError, match=sentence) as error:
        read_split(write(tmp_path / "train.jsonl", *rows), tokenizer, 50, VOCAB_SIZE)
    assert "train.jsonl" in str(error.value)
    with pytest.raises(UserError, match="is missing"):
        read_split(tmp_path / "none.jsonl", tokenizer, 50, VOCAB_SIZE)


def test_a_tokenizer_with_more_tokens_than_the_base(tokenizer, tmp_path):
    """Wherever such a token comes from."""
    path = write(tmp_path / "train.jsonl", PAIR)
    with pytest.raises(
        UserError, match=r"train.jsonl, line 1 holds token .*, the model's are 0 to"
    ):
        read_split(path, tokenizer, 100, 5)
