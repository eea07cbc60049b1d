"""Training data in mlx-lm's formats."""

import json

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import tiny_tokenizer
from tiny_training import completions

from specstream_mlx import UserError
from specstream_mlx.train.data import Batches, read_split
from specstream_mlx.train.items import Item
from specstream_mlx.train.sequences import sequences_of


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
CHAT = {
    "messages": [
        {"role": "user", "content": "check the numbers"},
        {"role": "assistant", "content": "the report"},
    ]
}


@pytest.mark.parametrize("row", [PAIR, CHAT])
def test_prompt_and_completion_are_as_they_are_decoded(row, tokenizer, tmp_path):
    (item,) = read_split(write(tmp_path / "train.jsonl", row), tokenizer, 100).items
    prompt = "<|user|>check the numbers<|end|><|assistant|>"
    assert tokenizer.decode(item.tokens[: item.stream_from]) == prompt
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the report<|end|>"


def test_an_answer_that_was_cut_has_no_end(tokenizer, tmp_path):
    row = {**PAIR, "finish_reason": "length"}
    (item,) = read_split(write(tmp_path / "train.jsonl", row), tokenizer, 100).items
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the report"


def test_without_a_chat_template(bare, tmp_path):
    (item,) = read_split(write(tmp_path / "train.jsonl", PAIR), bare, 100).items
    assert bare.decode(item.tokens) == "check the numbersthe report<|end|>"
    with pytest.raises(UserError, match="has messages, and the tokenizer no chat template"):
        read_split(write(tmp_path / "train.jsonl", CHAT), bare, 100)


def test_a_text_has_no_prompt(tokenizer, tmp_path):
    (item,) = read_split(write(tmp_path / "a.jsonl", {"text": "the team"}), tokenizer, 100).items
    assert item.stream_from == 1
    assert tokenizer.decode(item.tokens) == "the team<|end|>"


def test_a_prompt_template_is_put_around_prompts(tokenizer, tmp_path):
    path = write(tmp_path / "train.jsonl", PAIR)
    (item,) = read_split(path, tokenizer, 100, "please {text}, now").items
    assert "please check the numbers, now" in tokenizer.decode(item.tokens)


def test_long_sequences_are_left_out(tokenizer, tmp_path):
    path = write(tmp_path / "train.jsonl", PAIR, {**PAIR, "completion": "noon " * 40})
    found = read_split(path, tokenizer, 30)
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
        ([[1]], r"line 1 is \[1\], expected a prompt and a completion, or a text"),
        ([{"messages": CHAT["messages"][:1]}], "line 1 is "),
        ([{**PAIR, "completion": "noon " * 90}], "has no sequence of at most 50 tokens with"),
    ],
)
def test_bad_lines(rows, sentence, tokenizer, tmp_path):
    with pytest.raises(UserError, match=sentence) as error:
        read_split(write(tmp_path / "train.jsonl", *rows), tokenizer, 50)
    assert "train.jsonl" in str(error.value)
    with pytest.raises(UserError, match="is missing"):
        read_split(tmp_path / "none.jsonl", tokenizer, 50)


def test_batches_are_a_function_of_seed_and_step():
    items = [Item(list(range(5 + n % 40)), 2) for n in range(103)]
    batches = Batches(items, 8, seed=3)
    assert len(batches) == 13
    drawn = batches.from_step(0)
    two_epochs = [next(drawn) for _ in range(26)]
    for epoch in (two_epochs[:13], two_epochs[13:]):
        assert sorted(id(item) for batch in epoch for item in batch) == sorted(map(id, items))
    assert two_epochs[:13] != two_epochs[13:]
    for step in (0, 5, 13, 20):
        later = batches.from_step(step)
        assert [next(later) for _ in range(26 - step)] == two_epochs[step:]
    assert next(Batches(items, 8, seed=4).from_step(0)) != two_epochs[0]
    padding = sum(
        8 * max(len(i.tokens) for i in b) - sum(len(i.tokens) for i in b) for b in two_epochs
    )
    assert padding < 0.2 * sum(len(i.tokens) for b in two_epochs for i in b)


def test_what_is_scored():
    """By hand: two sequences, two streams."""
    items = [Item([1, 2, 3, 4, 5], 2), Item([6, 7, 8], 1)]
    sequences, scored = sequences_of(items, [1.0, 0.5, 0.5], segment=2)
    assert sequences.tokens.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]
    assert sequences.positions.tolist() == [[[1, 2], [3, 4]], [[0, 1], [2, 3]]]
    assert sequences.prompt_rows == 1
    columns = (scored.rows, scored.targets, scored.streams)
    table = list(zip(*(column.tolist() for column in columns), strict=True))
    first = [(0, 3, 0), (1, 4, 1), (2, 5, 2), (3, 4, 0), (4, 5, 1), (6, 5, 0)]
    second = [(12, 7, 0), (13, 8, 1), (15, 8, 0)]
    assert table == first + second
    assert scored.weights.tolist() == pytest.approx(
        [{0: 1 / 5, 1: 0.5 / 3, 2: 0.5 / 1}[stream] for _, _, stream in table]
    )
    assert scored.exits.tolist() == [0, 1, 2, 4, 5]
    assert scored.exit_targets.tolist() == [3, 4, 5, 7, 8]


def test_lengths_may_be_filled_up():
    items = [Item([1, 2, 3, 4, 5], 2), Item([6, 7, 8], 1)]
    sequences, scored = sequences_of(items, [0.0, 1.0, 1.0], segment=4, multiple=16)
    assert sequences.tokens.shape == (2, 16)
    assert sequences.positions.shape == (2, 4, 4)
    assert scored.rows.size % 16 == scored.exits.size % 16 == 0
    assert scored.weights.sum().item() == pytest.approx(2.0)
    assert scored.exit_weights.sum().item() == pytest.approx(1.0)


def test_completions_are_learnable():
    assert len({row["prompt"] for row in completions(24)}) > 12
