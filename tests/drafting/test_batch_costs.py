"""What passes of several texts say of the cost of a row."""

import random

import pytest

from specstream_mlx.drafting.batch_costs import BatchCosts
from specstream_mlx.drafting.proposer import MOST_NODES

SOLO = (1.0, 0.02), (1.2, 0.02)
GAINS = [0.7 * 0.75**place for place in range(15)]


@pytest.mark.parametrize("texts", [2, 8])
@pytest.mark.parametrize("row", [0.0004, 0.002, 0.03])
@pytest.mark.parametrize("busy", [0.0, 0.1])
def test_as_much_is_drafted_as_brings_the_most_tokens_a_second(texts, row, busy):
    """The best number of nodes is found by trying all."""
    shared = 0.05

    def rate(nodes):
        return (1 + sum(GAINS[: nodes - 1])) / (shared + row * texts * nodes)

    costs, rng, found = BatchCosts(), random.Random(0), []
    for _ in range(200):  # passes, whose drafts are right as often as they seem
        for _ in range(texts):
            costs.note_gains(texts, GAINS)
            share = costs.share(texts, SOLO)
        found.append(rate(share.nodes))
        drafted = GAINS[: share.nodes - 1] * texts
        tokens = texts + sum(rng.random() < gain for gain in drafted)
        took = (shared + row * texts * share.nodes) * rng.uniform(0.97, 1.03)
        took *= 5 if rng.random() < busy else 1
        costs.note(texts, texts * share.nodes, True, tokens, took)
    best = max(map(rate, range(1, MOST_NODES + 1)))
    assert sum(found[-100:]) / 100 > (0.8 if busy else 0.97) * best
