"""Batches and their rows: which items come in which order, what is computed, what is scored."""

import mlx.core as mx
import pytest

from specstream_mlx.train.batches import Batches, Item, most_frequent
from specstream_mlx.train.sequences import places_of, sequences_of


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


def test_the_most_frequent_tokens_of_completions():
    """Of equals those of all text, then those of the vocabulary."""
    items = [Item([9, 9, 9, 5, 5, 7], 3), Item([4, 8, 7, 5, 8], 2)]
    assert most_frequent(items, 2, 10) == [5, 7]
    assert most_frequent(items, 3, 10) == [5, 7, 8]
    assert 9 in most_frequent(items, 4, 10)


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


def test_streams_are_scored_on_what_they_may_draft():
    places = places_of(mx.array([4, 8]), 9)
    _, scored = sequences_of(ITEMS, [0.0, 0.5, 0.5], segment=2, places=places)
    assert table(scored) == [(1, 0, 1), (13, 1, 1)]
    assert scored.main_rows == 0
    assert scored.weights.tolist() == [0.25, 0.25]
