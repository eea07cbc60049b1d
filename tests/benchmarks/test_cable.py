"""The simulation of a cable: what a delay of every reduction does to tokens per second."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from benchmarks.studies.cable import DELAYS, WRITERS, plot, rows_of
from benchmarks.studies.drafting_rule import Recording
from specstream_mlx.drafting.auto import places_of
from specstream_mlx.drafting.cost import StepCosts
from specstream_mlx.engine.guesses import StreamGuesses
from specstream_mlx.stream_config import StreamConfig

LAYERS, STREAMS = 8, 4
PLAIN, NODES = 0.01, 0.004  # seconds of a plain step, and of a step for every node


@pytest.fixture
def rows(tmp_path):
    """Of a text that streams know by heart, where rows of a step are dear."""
    streams = {
        writer: StreamConfig(
            mode=mode,
            hidden_size=32,
            num_hidden_layers=LAYERS,
            num_streams=STREAMS,
            num_msa_layers=2,
        )
        for writer, mode in zip(WRITERS, ("lossless", "shared"), strict=True)
    }
    tokens = list(range(100, 200))
    guesses = [
        StreamGuesses(
            token + 1 + np.arange(STREAMS, dtype=np.int32)[:, None],
            np.full((STREAMS, 1), np.log(0.9), np.float32),
        )
        for token in tokens
    ]
    costs = {}
    for writer, config in streams.items():
        costs[writer] = StepCosts(tmp_path / writer, {}, places_of(config))
        points = {
            place: tuple((nodes, PLAIN + NODES * (nodes - 1)) for nodes, _ in known)
            for place, known in costs[writer].curve.points.items()
        }
        costs[writer].curve.points.update(points)
    texts = {writer: [Recording([1, 2, 3], tokens, guesses)] for writer in WRITERS}
    return rows_of(texts, costs, streams, LAYERS)


def test_plain_decoding_slows_down_by_its_reductions_and_drafts_gain(rows):
    assert [row["delay"] for row in rows] == list(DELAYS)
    for writer in WRITERS:
        for row in rows:
            seconds = PLAIN + (2 * LAYERS + 1) * row["delay"] / 1e3
            assert row[f"{writer}_plain"] == pytest.approx(1 / seconds, rel=1e-4)
            assert row[f"{writer}_drafts"] == pytest.approx(
                row[f"{writer}_plain"] * row[f"{writer}_speedup"], rel=1e-3
            )
        gains = [row[f"{writer}_speedup"] for row in rows]
        assert 1 <= gains[0] < gains[-1] < STREAMS + 1
        assert gains == sorted(gains)


def test_the_plot_has_a_line_for_each_writer(rows):
    drawn = ElementTree.fromstring(plot(rows))
    lines = [one.get("points").split() for one in drawn if one.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [len(DELAYS)] * len(WRITERS)
    for line in lines:
        heights = [float(point.split(",")[1]) for point in line]
        assert all(0 < height < 270 for height in heights)
        assert heights == sorted(heights, reverse=True)
