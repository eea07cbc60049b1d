"""Training data in mlx-lm's formats."""

import json

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import CHAT_TEMPLATE, VOCAB_SIZE, tiny_tokenizer

from specstream_mlx import UserError
from specstream_mlx.train.data import read_split

PAIR = {"prompt": "check the numbers", "completion": "the report"}
ANSWER = {**PAIR, "finish_reason": "stop"}
CHAT = {
    "messages": [
        {"role": "user", "content": "check the numbers"},
        {"role": "assistant", "content": "the report"},
    ]
}
TURN = "<|user|>check the numbers<|end|><|assistant|>"


@pytest.fixture
def read(tmp_path):
    """What is read of these rows."""
    path = tmp_path / "train.jsonl"

    def read(rows, chat=CHAT_TEMPLATE, longest=100, template=None):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_split(path, tokenizer_of(chat), longest, VOCAB_SIZE, template)

    return read


def tokenizer_of(chat=CHAT_TEMPLATE):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat
    return TokenizerWrapper(tokenizer)


FORGETS = (  # what was thought before noon
    "{% for m in messages %}<|user|>{{ m.content.split('noon')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TALK = {"prompt": "noon", "completion": "the team", "earlier": ["when", "at five"]}
TURNS = "<|user|>when<|end|><|assistant|>at five<|end|><|user|>At: noon<|end|><|assistant|>"
THOUGHT = {"prompt": "check", "completion": "noon the report", "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("row", "chat", "template", "prompt", "answer"),
    [
        (PAIR, CHAT_TEMPLATE, None, TURN, "the report<|end|>"),
        (CHAT, CHAT_TEMPLATE, None, TURN, "the report<|end|>"),
        ({**PAIR, "finish_reason": "length"}, CHAT_TEMPLATE, None, TURN, "the report"),
        (TALK, CHAT_TEMPLATE, "At: {text}", TURNS, "the team<|end|>"),
        (THOUGHT, FORGETS, None, "<|user|>check<|end|><|assistant|>", "noon the report<|end|>"),
        (PAIR, None, None, "check the numbers", "the report<|end|>"),
        ({"text": "the team"}, CHAT_TEMPLATE, None, "", "the team<|end|>"),
    ],
)
def test_prompt_and_completion_are_as_they_are_decoded(row, chat, template, prompt, answer, read):
    """An answer that was cut has no end, and one of the base's own is as it was written."""
    tokenizer = tokenizer_of()
    (item,) = read([row | {"source": "news"}], chat, template=template).items
    assert tokenizer.decode(item.tokens) == prompt + answer
    start = item.stream_from
    assert tokenizer.decode(item.tokens[:start]) == prompt if prompt else start == 1
    assert item.source == "news"


def test_own_answers_keep_their_tokens(read):
    """Encoded again, a text may have others."""
    tokenizer = tokenizer_of()
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "team"]
    row = {"prompt": "check", "completion": "team", "finish_reason": "stop", "tokens": letters}
    (item,) = read([row]).items
    assert list(item.tokens[item.stream_from :]) == [*letters, tokenizer.eos_token_id]
    found = read([row, {**row, "tokens": letters * 9}], longest=30)
    assert (len(found.items), found.too_long) == (1, 1)
    assert found.items[0] == item


@pytest.mark.parametrize(
    ("rows", "fields", "sentence"),
    [
        ([PAIR, {"text": "x"}], {}, "line 2 is {'text': 'x'}, expected as in the first line"),
        ([{**ANSWER, "tokens": ["x"]}], {}, "line 1 is "),
        ([{**TALK, "earlier": ["when"]}], {}, "line 1 is "),
        ([PAIR, {**ANSWER, "tokens": [VOCAB_SIZE]}], {}, f"line 2 holds token {VOCAB_SIZE}, "),
        ([PAIR], {"longest": 3}, "has no sequence of at most 3 tokens with"),
        ([CHAT], {"chat": None}, "has messages, and the tokenizer no chat template"),
        ([CHAT], {"template": "please {text}"}, "messages and no prompts, expected no --prompt-t"),
    ],
)
def test_bad_lines(rows, fields, sentence, read):
    with pytest.raises(UserError, match=sentence):
        read(rows, **fields)
