"""Rows of a step: which are computed, and which are scored."""

import mlx.core as mx
import pytest

from specstream_mlx.train.items import Item
from specstream_mlx.train.sequences import places_of, sequences_of


def test_what_is_scored():
    """By hand: two sequences, two streams."""
    items = [Item([1, 2, 3, 4, 5], 2), Item([6, 7, 8], 1)]
    sequences, scored = sequences_of(items, [1.0, 0.5, 0.5], segment=2)
    assert sequences.tokens.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]
    assert sequences.positions.tolist() == [[[1, 2], [3, 4]], [[0, 1], [2, 3]]]
    assert sequences.prompt_rows == 1
    columns = (scored.rows, scored.targets, scored.streams)
    table = list(zip(*(column.tolist() for column in columns), strict=True))
    main = [(0, 3, 0), (3, 4, 0), (6, 5, 0), (12, 7, 0), (15, 8, 0)]
    assert table == [*main, (1, 4, 1), (2, 5, 2), (4, 5, 1), (13, 8, 1)]
    assert scored.main_rows == len(main)
    assert scored.weights.tolist() == pytest.approx(
        [{0: 1 / 5, 1: 0.5 / 3, 2: 0.5 / 1}[stream] for _, _, stream in table]
    )
    assert scored.exits.tolist() == [0, 1, 2, 4, 5]
    assert scored.exit_targets.tolist() == [3, 4, 5, 7, 8]


def test_streams_are_scored_on_what_they_may_draft():
    items = [Item([1, 2, 3, 4, 5], 2), Item([6, 7, 8], 1)]
    places = places_of(mx.array([4, 8]), 9)
    _, scored = sequences_of(items, [0.0, 0.5, 0.5], segment=2, places=places)
    columns = (scored.rows, scored.targets, scored.streams)
    table = list(zip(*(column.tolist() for column in columns), strict=True))
    assert table == [(1, 0, 1), (13, 1, 1)]
    assert scored.main_rows == 0
    assert scored.weights.tolist() == [0.25, 0.25]
