"""Training data: mlx-lm's formats, the order of batches, what of them is scored."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import CHAT_TEMPLATE, VOCAB_SIZE, tiny_tokenizer
from tiny_training import write_rows

from specstream_mlx import UserError
from specstream_mlx.train.batches import Batches, Item, most_frequent
from specstream_mlx.train.data import read_split
from specstream_mlx.train.sequences import count_targets, places_of, sequences_of

PAIR = {"prompt": "check the numbers", "completion": "the report"}
ANSWER = {**PAIR, "finish_reason": "stop"}
CHAT = {
    "messages": [
        {"role": "user", "content": "check the numbers"},
        {"role": "assistant", "content": "the report"},
    ]
}
TURN = "<|user|>check the numbers<|end|><|assistant|>"
TALK = {"prompt": "noon", "completion": "the team", "earlier": ["when", "at five"]}
TURNS = "<|user|>when<|end|><|assistant|>at five<|end|><|user|>At: noon<|end|><|assistant|>"
FORGETS = (  # what was thought before noon
    "{% for m in messages %}<|user|>{{ m.content.split('noon')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THOUGHT = {"prompt": "check", "completion": "noon the report", "finish_reason": "stop"}


@pytest.fixture
def read(tmp_path):
    """What is read of these rows."""
    path = tmp_path / "train.jsonl"

    def read(rows, chat=CHAT_TEMPLATE, longest=100, template=None):
        return read_split(write_rows(path, rows), tokenizer_of(chat), longest, VOCAB_SIZE, template)

    return read


def tokenizer_of(chat=CHAT_TEMPLATE):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat
    return TokenizerWrapper(tokenizer)


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
    (item,) = read([row | {"source": "news"}], chat, template=template)
    assert (tokenizer.decode(item.tokens), item.source) == (prompt + answer, "news")
    start = item.stream_from
    assert tokenizer.decode(item.tokens[:start]) == prompt if prompt else start == 1


def turns(user="<|user|>{{ m.content }}<|end|>", model="{{ m.content }}<|end|>", asks=""):
    """A template of these turns, whose answers begin after ``<|assistant|>``."""
    each = f"{{% if m.role == 'user' %}}{user}{{% else %}}<|assistant|>{model}{{% endif %}}"
    asks = f"{{% if add_generation_prompt %}}<|assistant|>{asks}{{% endif %}}"
    return f"{{% for m in messages %}}{each}{{% endfor %}}{asks}"


ASKED = "<|user|>check<|end|><|assistant|>"
SAID = "noon, the report"
ANSWER_ALONE = "{{ m.content.split('</think>')[-1] }}<|end|>"
THINKS = "{{ '<think>\n' }}"


@pytest.mark.parametrize(
    ("template", "answer", "prompt", "completion"),
    [
        pytest.param(turns(), SAID, ASKED, SAID, id="plain"),
        pytest.param(turns(asks=THINKS), SAID, ASKED, SAID, id="thought opened, and not kept"),
        pytest.param(turns(asks=THINKS), "<table", ASKED, "<table", id="and answered alike"),
        pytest.param(turns(asks=THINKS), "0 and 1", ASKED, "0 and 1", id="and answered as marked"),
        pytest.param(
            turns(asks=THINKS),
            f"<think>\nwhen</think>{SAID}",
            f"{ASKED}<think>\n",
            f"when</think>{SAID}",
            id="thought opened, and answered with it",
        ),
        pytest.param(
            turns(model=ANSWER_ALONE, asks=THINKS),
            f"<think>\nwhen</think>{SAID}",
            ASKED,
            SAID,
            id="thought opened, and left out",
        ),
        pytest.param(
            turns(model="{{ '<think>\n\n</think>' }}{{ m.content }}<|end|>", asks=THINKS),
            SAID,
            f"{ASKED}<think>\n",
            f"\n</think>{SAID}",
            id="thought opened, and kept empty",
        ),
        pytest.param(
            turns(model="</think>{{ m.content }}<|end|>", asks="<think>"),
            SAID,
            f"{ASKED}</think>",
            SAID,
            id="thought opened, and kept closed",
        ),
        pytest.param(
            turns(user="<|user|>{{ 'at noon: ' if loop.last }}{{ m.content }}<|end|>"),
            SAID,
            ASKED,
            SAID,
            id="what stands before the last message",
        ),
        pytest.param(
            turns(model="{{ m.content | trim }}<|end|>", asks="{{ ' ' }}"),
            f"  {SAID}",
            ASKED,
            SAID,
            id="blanks",
        ),
    ],
)
def test_a_completion_begins_where_the_conversation_has_it(
    template, answer, prompt, completion, read
):
    """Not where a prompt ends that the template renders otherwise once it is answered."""
    tokenizer = tokenizer_of()
    asked = {"role": "user", "content": "check"}
    pair = {"prompt": "check", "completion": answer}
    for row in (pair, {"messages": [asked, {"role": "assistant", "content": answer}]}):
        (item,) = read([row], template)
        start = item.stream_from
        assert tokenizer.decode(item.tokens[:start]) == prompt
        assert tokenizer.decode(item.tokens[start:]) == f"{completion}<|end|>"
    earlier = ["when", "at five"]
    (item,) = read([pair | {"earlier": earlier}], template)
    assert tokenizer.decode(item.tokens[item.stream_from :]) == f"{completion}<|end|>"
    assert "at five<|end|>" in tokenizer.decode(item.tokens[: item.stream_from])


def test_a_token_across_the_border_belongs_to_the_completion(read):
    """Where what the prompt ends with and what the answer begins with are one token."""
    tokenizer = tokenizer_of()
    assert len(tokenizer.encode("the", add_special_tokens=False)) == 1
    (item,) = read(
        [{"prompt": "check", "completion": "the report"}], turns(model="{{ m.content }}", asks="t")
    )
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the report<|end|>"


def test_other_fields_of_an_answer(read):
    """Calls of tools are said, and parts of a content are a content."""
    model = "{% for part in m.content or [] %}{{ part.text }}{% endfor %}"
    model += "{% for call in m.tool_calls or [] %}{{ call }}{% endfor %}<|end|>"
    asked = {"role": "user", "content": "check"}
    for fields, completion in (
        ({"content": None, "tool_calls": ["noon"]}, "noon"),
        ({"content": [{"type": "text", "text": "team"}]}, "team"),
    ):
        row = {"messages": [asked, {"role": "assistant", **fields}]}
        (item,) = read([row], turns(model=model, asks=THINKS))
        tokens = item.tokens[item.stream_from :]
        assert tokenizer_of().decode(tokens) == f"{completion}<|end|>"


def test_own_answers_keep_their_tokens(read, capsys):
    tokenizer = tokenizer_of()
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "team"]
    row = {"prompt": "check", "completion": "team", "finish_reason": "stop", "tokens": letters}
    (item,) = read([row])
    assert list(item.tokens[item.stream_from :]) == [*letters, tokenizer.eos_token_id]
    found = read([row, {**row, "tokens": letters * 9}], longest=30)
    assert found == [item]
    assert "train.jsonl: 1 sequences over 30 tokens left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "fields", "sentence"),
    [
        ([PAIR, {"text": "x"}], {}, "line 2 is {'text': 'x'}, expected as in the first line"),
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


def test_batches_are_a_function_of_seed_and_step():
    items = [Item(list(range(5 + n % 40)), 2) for n in range(103)]
    batches = Batches(items, 8, seed=3)
    assert len(batches) == 13
    drawn = batches.from_step(0)
    two_epochs = [next(drawn) for _ in range(26)]
    for epoch in (two_epochs[:13], two_epochs[13:]):
        assert sorted(id(item) for batch in epoch for item in batch) == sorted(map(id, items))
    assert two_epochs[:13] != two_epochs[13:]
    later = batches.from_step(5)
    assert [next(later) for _ in range(21)] == two_epochs[5:]
    lengths = [[len(item.tokens) for item in batch] for batch in two_epochs]
    assert sum(8 * max(batch) for batch in lengths) < 1.2 * sum(map(sum, lengths))


def test_the_most_frequent_tokens_of_completions():
    items = [Item([9, 9, 9, 5, 5, 7], 3), Item([4, 8, 7, 5, 8], 2)]
    assert [most_frequent(items, n, 10) for n in (2, 3, 4)] == [[5, 7], [5, 7, 8], [5, 7, 8, 9]]


ITEMS = [Item([1, 2, 3, 4, 5], 2), Item([6, 7, 8], 1)]


def table(scored):
    """A row's place, target and stream."""
    columns = (scored.rows, scored.targets, scored.streams)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_what_is_scored():
    """By hand: two sequences, two streams."""
    sequences, scored = sequences_of(ITEMS, [1.0, 0.5, 0.5], segment=2)
    assert sequences.tokens.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]
    assert sequences.positions.tolist() == [[[1, 2], [3, 4]], [[0, 1], [2, 3]]]
    assert sequences.prompt_rows == 1
    main = [(0, 3, 0), (3, 4, 0), (6, 5, 0), (12, 7, 0), (15, 8, 0)]
    assert table(scored) == [*main, (1, 4, 1), (2, 5, 2), (4, 5, 1), (13, 8, 1)]
    assert scored.main_rows == len(main)
    weights = {0: 1 / 5, 1: 0.5 / 3, 2: 0.5 / 1}
    assert scored.weights.tolist() == pytest.approx([weights[s] for *_, s in table(scored)])
    assert scored.exits.tolist() == [0, 1, 2, 4, 5]
    assert scored.exit_targets.tolist() == [3, 4, 5, 7, 8]
    places = places_of(mx.array([4, 8]), 9)  # of a draft vocabulary
    _, scored = sequences_of(ITEMS, [0.0, 0.5, 0.5], segment=2, places=places)
    assert table(scored) == [(1, 0, 1), (13, 1, 1)]
    assert scored.main_rows == 0
    assert scored.weights.tolist() == [0.25, 0.25]
    assert count_targets(ITEMS, 3, None).tolist() == [5, 3, 1]
    assert count_targets(ITEMS, 3, places).tolist() == [5, 2, 0]
    _, scored = sequences_of(ITEMS[:1], [1.0, 0.5, 0.5], counts=np.array([2.5, 1.5, 0.5]))
    weights = {0: 1 / 2.5, 1: 0.5 / 1.5, 2: 0.5 / 0.5}
    assert scored.weights.tolist() == pytest.approx([weights[s] for *_, s in table(scored)])
    assert scored.exit_weight == 1 / 2.5
