"""Rows of training text: whole items, attention within each, the same rows after a resumption."""

from itertools import chain, islice

import pytest
import torch
from specstream_mlx.convert.demo_model import packing, tasks
from specstream_mlx.convert.demo_model.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(vocab_size=600, items=300)


@pytest.fixture
def short_cycle(monkeypatch):
    monkeypatch.setattr(packing, "ROW_TOKENS", (256, 256, 1024))


def equal(one, other):
    fields = ("tokens", "document", "prompt", "target")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


def test_an_item_is_its_instruction_its_content_and_its_target(tokenizer):
    item = tasks.Item("sql", "table t(a): how many?", "SELECT COUNT(*) FROM t", ())
    ids, prompt = packing.encode(tokenizer, item)
    instruction = tasks.TASKS["sql"].INSTRUCTION
    start = f"<|user|>{instruction}\ntable t(a): how many?<|end|><|assistant|>"
    assert tokenizer.decode(ids[:prompt]) == start
    assert tokenizer.decode(ids[prompt:]) == "SELECT COUNT(*) FROM t<|end|>"


def test_packed_items_stay_whole_and_apart():
    first, second = ([5, 6, 7, 8], 2), ([9, 10, 11], 1)
    rows = packing.pack([[first, second], [second]], 8, pad=0)
    assert rows.tokens.tolist() == [[5, 6, 7, 8, 9, 10, 11, 0], [9, 10, 11, 0, 0, 0, 0, 0]]
    assert rows.document.tolist() == [[0, 0, 0, 0, 1, 1, 1, -1], [2, 2, 2, *[-1] * 5]]
    assert rows.prompt.nonzero().tolist() == [[0, 1]]
    assert rows.target[0].nonzero().flatten().tolist() == [2, 3, 5, 6]


def test_long_items_get_the_shortest_rows_that_they_fit_into():
    rows = [packing.Row(0, 256), packing.Row(1, 512), packing.Row(2, 2048)]
    long, longer, too_long = ([1] * 300, 1), ([1] * 1500, 1), ([1] * 600, 1)
    packing.place([too_long, longer, long], rows)
    assert [row.items for row in rows] == [[], [long], [longer]]
    assert [row.used for row in rows] == [0, 300, 1500]


def test_every_step_has_its_tokens_and_little_padding(tokenizer, short_cycle):
    steps = packing.cycle(tokenizer, 0, 4096, seed=0)
    assert [tuple(rows.tokens.shape) for rows in steps] == [(16, 256), (16, 256), (4, 1024)]
    filled = sum(int((rows.document >= 0).sum()) for rows in steps)
    assert filled > 0.9 * 3 * 4096
    for rows in steps:
        padding = rows.document < 0
        assert (rows.tokens[padding] == tokenizer.pad_token_id).all()
        assert not (rows.prompt & rows.target).any()
        ends = rows.tokens[rows.target] == tokenizer.eos_token_id
        assert ends.sum() == rows.document.max() + 1


def test_rows_after_a_resumption_are_those_of_a_run_that_went_on(tokenizer, short_cycle):
    def rows_from(step):
        return packing.TrainingRows(tokenizer, step, 1024, seed=3)

    straight = list(islice(chain.from_iterable(rows_from(0)), 7))
    assert not equal(straight[0], straight[3])
    for step in (1, 3, 5):
        assert equal(next(chain.from_iterable(rows_from(step))), straight[step])
    for processes in (1, 2):
        background = list(islice(rows_from(2).in_background(processes), 5))
        assert all(map(equal, background, straight[2:]))


def test_tasks_are_drawn_by_the_weights_that_are_given(tokenizer, short_cycle):
    for rows in packing.cycle(tokenizer, 0, 1024, seed=0, weights={"sql": 1.0}):
        text = tokenizer.decode(rows.tokens[0])
        assert text.startswith("<|user|>" + tasks.TASKS["sql"].INSTRUCTION)
