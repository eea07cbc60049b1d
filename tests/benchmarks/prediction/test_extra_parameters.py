"""Counts of parameters beside those that the papers state."""

import pytest

from benchmarks.prediction.extra_parameters import (
    eagle_parameters,
    medusa_parameters,
    stream_parameters,
)
from benchmarks.prediction.metal_cost import Shape
from benchmarks.prediction.simulation import MODELS

VICUNA_7B = Shape("Vicuna 7B", 32, 4096, 11008, 32, 32, 128, 32000)


@pytest.mark.parametrize("model", MODELS)
def test_a_conditioned_head_is_three_maps_and_biases(model):
    plain = stream_parameters(model, mode="lossless", stream_head="plain")
    more = stream_parameters(model, mode="lossless") - plain
    assert more == 128 * 3 * model.hidden + 4 * 128


def test_the_others_are_as_large_as_published():
    """EAGLE: 0.24 B for a 7 B model; Medusa, with the heads' own LM heads: 0.6 B."""
    assert eagle_parameters(VICUNA_7B) == pytest.approx(0.24e9, rel=0.03)
    assert medusa_parameters(VICUNA_7B) == pytest.approx(0.59e9, rel=0.03)
