"""What wrong costs lose: the replay of recorded texts."""

import numpy as np
import pytest

from benchmarks.prediction import lost_time
from benchmarks.prediction.recorded_texts import read
from specstream_mlx.drafting.typical_costs import ON_CPU
from specstream_mlx.engine.plan import DraftTree, Plan
from specstream_mlx.hardware.apple_chips import chip


@pytest.fixture
def case(monkeypatch):
    monkeypatch.setattr(lost_time, "READINGS", 2)
    streams = lost_time.streams_of(lost_time.MODELS[0])
    return lost_time.Case(lost_time.MODELS[0], 512, streams, list(read())[:6], noise=0.1, seed=0)


def test_the_planner_with_the_true_costs_beats_plain_steps(case):
    """By more than chance, and as texts are replayed token for token: two readings are alike."""
    true = case.true_costs(chip("M3 Max"))
    *_, before, last = case.seconds(true, ON_CPU, known=True)
    assert before == last
    tokens = sum(len(text.tokens) for text in case.texts)
    assert 0.5 * tokens * true["plain"][0] < last < 0.9 * tokens * true["plain"][0]


def test_costs_by_kernels_lose_less_than_interpolated_ones(case):
    lost = lost_time.lost(case, "M3 Max")
    assert lost["by kernels"]["later"] < 0.06
    assert lost["interpolated"]["later"] > lost["by kernels"]["later"] + 0.05
    assert all(loss["first"] > loss["later"] for loss in lost.values()), "timing takes time"


def test_only_the_path_that_the_text_took_is_accepted():
    [text, *_] = read()
    tokens = np.array([0, *text.tokens[:2], 5], np.int32)
    tree = DraftTree(tokens, np.array([-1, 0, 1, 2]), np.arange(4), np.zeros(4))
    assert lost_time.accepted(Plan(tree, "none"), text.tokens) == [0, 1, 2]
