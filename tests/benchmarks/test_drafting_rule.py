"""The simulation of the rule on recorded texts, under costs that are assumed."""

import numpy as np
import pytest

from benchmarks.studies.drafting_rule import VARIANTS, Recording, assumed, changed, rates_of
from specstream_mlx.drafting import constants
from specstream_mlx.engine.guesses import StreamGuesses
from specstream_mlx.stream_config import StreamConfig

STREAMS = StreamConfig(
    mode="lossless", hidden_size=32, num_hidden_layers=8, num_streams=4, num_msa_layers=2
)


def recordings(right, count=6):
    """Texts in which no token comes twice, and streams that always or never tell the next ones."""
    tokens = list(range(100, 200))
    off = 1 if right else 1000
    depths = np.arange(4, dtype=np.int32)[:, None]
    scores = np.full((4, 1), np.log(0.9), np.float32)
    guesses = [StreamGuesses(token + off + depths, scores) for token in tokens]
    return [Recording([1, 2, 3], tokens, guesses)] * count


@pytest.mark.parametrize("alone", [False, True])
def test_what_streams_know_is_gained_and_what_they_do_not_costs_little(alone):
    texts = {("base", "known", "any"): recordings(True), ("base", "new", "any"): recordings(False)}
    rates = rates_of(texts, {"base": STREAMS}, alone)
    assert rates.keys() == {
        f"base, {name}, {rows} rows" for name in ("known", "new") for rows in ("dear", "cheap")
    }
    assert 1.5 < rates["base, known, dear rows"][0] < rates["base, known, cheap rows"][0] < 4
    assert all(0.9 < rates[f"base, new, {rows} rows"][0] <= 1 for rows in ("dear", "cheap"))
    assert all(least <= mean for mean, least in rates.values())


def test_assumed_costs_are_not_measured():
    for costs in assumed(STREAMS).values():
        costs.refresh()
        assert costs.wanted() is None and costs.complete


def test_constants_are_changed_for_as_long_as_asked():
    for name, (module, constant, value) in VARIANTS.items():
        before = getattr(module, constant)
        with changed(name):
            assert getattr(module, constant) == value
        assert getattr(module, constant) == before != value, name
    assert constants.TRIALS > 0
