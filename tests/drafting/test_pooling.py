"""What streams and lookup propose together, by hand."""

import math

import numpy as np
import pytest

from specstream_mlx.drafting.constants import MOST_TOGETHER
from specstream_mlx.drafting.pooling import pooled


def together(streams, found):
    """Pooled probabilities of probabilities by token."""
    streams, found = ([(t, math.log(p)) for t, p in given.items()] for given in (streams, found))
    return {token: math.exp(score) for token, score in pooled(streams, found)}


def test_probabilities_sum_to_at_most_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        streams = dict(zip(range(4), rng.dirichlet(np.full(5, 0.3))[:4] + 1e-9, strict=True))
        first, second, _ = rng.dirichlet([1, 1, 1])
        token = int(rng.integers(0, 7))
        found = together(streams, {token: first, token + 1: second})
        assert set(found) == {*streams, token, token + 1}
        assert sum(found.values()) <= 1 + 1e-6
        assert all(value >= 0 for value in found.values())
        assert together(streams, {}) == pytest.approx(streams)


def test_agreement_is_surer_than_either_and_else_the_surer_one_prevails():
    agreed = together({3: 0.6, 4: 0.2}, {3: 0.7})
    assert agreed[3] > 0.9 and agreed[4] < 0.2
    assert together({3: 0.98}, {9: 0.2})[3] > 0.9
    assert together({3: 0.98}, {9: 0.2})[9] < 0.05
    lookup_prevails = together({3: 0.3, 4: 0.1}, {9: 0.8})
    assert lookup_prevails[9] > 2 * lookup_prevails[3]


def test_odds_multiply():
    """Of 0.3 * 0.6 / 0.05 and 0.5 * 0.4 and 0.2 * 0.4 for all other tokens."""
    found = together({3: 0.5, 4: 0.3}, {4: 0.6})
    total = 3.6 + 0.2 + 0.08
    assert found == pytest.approx({3: 0.2 / total, 4: 3.6 / total})


def test_lookup_may_name_a_token_where_corrected_streams_leave_next_to_none():
    streams = [(3, math.log(MOST_TOGETHER)), (4, -math.inf)]
    for token in (4, 5):
        assert set(dict(pooled(streams, [(token, math.log(0.5))]))) == {3, token}


def test_what_several_are_certain_of_may_be_rounded_to_more_than_one():
    certain = [(5, math.log1p(1e-15)), (7, math.log(1e-17))]
    assert dict(pooled([(5, math.log(0.9)), (6, math.log(0.05))], certain))[5] == 0.0
    assert dict(pooled(certain, [(6, math.log(0.5))]))[5] == 0.0
