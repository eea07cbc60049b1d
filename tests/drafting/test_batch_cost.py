"""Costs of passes of several texts: what their times say, and how much is then drafted."""

import random
import statistics

import pytest

from specstream_mlx.drafting.batch_cost import BatchCosts
from specstream_mlx.drafting.constants import MOST_NODES, MOST_ROWS

SOLO = (1.0, 0.02), (1.2, 0.02)
GAINS = [0.7 * 0.75**place for place in range(15)]


def seconds(shared, row, rows):
    return shared + row * rows


def write(costs, texts, shared, row, passes=200, busy=0.0, seed=0):
    """Let texts be decoded whose drafts are right as often as they seem; return the shares."""
    rng, found = random.Random(seed), []
    for _ in range(passes):
        for _ in range(texts):
            costs.note_gains(texts, GAINS)
            share = costs.share(texts, SOLO)
        found.append(share)
        tokens = sum(
            1 + sum(rng.random() < g for g in GAINS[: share.nodes - 1]) for _ in range(texts)
        )
        took = seconds(shared, row, texts * share.nodes) * rng.uniform(0.97, 1.03)
        if rng.random() < busy:
            took *= 5
        costs.note(texts, texts * share.nodes, True, tokens, took)
    return found


def best_nodes(texts, shared, row):
    """The nodes with the most tokens per second, by trying all."""
    return max(
        range(1, MOST_NODES + 1),
        key=lambda n: (1 + sum(GAINS[: n - 1])) / seconds(shared, row, texts * n),
    )


@pytest.mark.parametrize("texts", [2, 4, 8])
@pytest.mark.parametrize(("shared", "row"), [(0.05, 0.0004), (0.05, 0.002), (0.05, 0.03)])
@pytest.mark.parametrize("busy", [0.0, 0.1])
def test_as_much_is_drafted_as_brings_the_most_tokens_a_second(texts, shared, row, busy):
    costs = BatchCosts()
    last = write(costs, texts, shared, row, busy=busy)[-100:]
    best = best_nodes(texts, shared, row)

    def rate(nodes):
        return (1 + sum(GAINS[: nodes - 1])) / seconds(shared, row, texts * nodes)

    usual = sum(rate(share.nodes) for share in last) / len(last)
    assert usual > (0.8 if busy else 0.97) * rate(best)


def test_the_dearer_rows_are_the_less_is_drafted():
    by_row = [(8, row) for row in (0.0001, 0.001, 0.004, 0.05)]
    by_text = [(texts, 0.002) for texts in (2, 4, 8, 16)]
    for cases in (by_row, by_text):
        usual, best = [], [best_nodes(texts, 0.05, row) for texts, row in cases]
        for texts, row in cases:
            shares = write(BatchCosts(), texts, 0.05, row)[-100:]
            usual.append(statistics.median(one.nodes for one in shares))
        assert usual == sorted(usual, reverse=True)
        assert usual == pytest.approx(best, abs=1)
        assert usual[0] >= 2 * usual[-1]


def test_what_a_text_counts_on():
    costs = BatchCosts()
    before = costs.share(4, SOLO)
    assert before.nodes == 1  # nobody has said yet how likely drafts are
    assert before.seconds == pytest.approx([(1 + 0.02 * 4) / 4, (1.2 + 0.02 * 4) / 4])
    assert before.rate == pytest.approx(4 / (1 + 0.02 * 4))
    for rows in (4, 8, 16, 4, 8, 16):
        costs.note(4, rows, True, 4, 0.2 + 0.01 * rows)
    share = costs.share(4, SOLO)
    assert share.seconds[1] * 4 == pytest.approx(0.2 + 0.01 * 4, rel=0.02)
    ratio = (1 + 0.02 * 4) / (1.2 + 0.02 * 4)
    assert share.seconds[0] == pytest.approx(share.seconds[1] * ratio)
    costs.note(4, 4, True, 4, None)  # disturbed: no time
    assert costs.share(4, SOLO).seconds == share.seconds
    own = share.costs(True)
    assert len(own) == MOST_ROWS + 1
    assert own[: share.nodes + 1] == [share.seconds[1]] * (share.nodes + 1)
    further = own[share.nodes + 1] - own[share.nodes]
    assert further == pytest.approx(4 * 0.01, rel=0.06)  # a row for each text
    assert own[-1] == pytest.approx(own[share.nodes] + further * (MOST_ROWS - share.nodes))
    assert costs.share(5, SOLO).seconds != share.seconds  # each number of texts by itself
