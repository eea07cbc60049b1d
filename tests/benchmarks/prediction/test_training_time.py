"""Hours of training beside figures that were published or worked out by hand."""

import pytest

from benchmarks.prediction.apple_machines import chip
from benchmarks.prediction.metal_cost import Shape
from benchmarks.prediction.simulation import MODELS
from benchmarks.prediction.training_time import RATE_SHARE, TRAINED, hours, operations


def test_parts_by_hand():
    parts = operations(MODELS[0])  # 16 layers of 60.8 M weights, a head of 128256 x 2048
    assert parts["main"] == pytest.approx(2 * 16 * 60.8e6 / 0.6, rel=0.01)
    assert parts["streams"] == pytest.approx(4 * 16 * 60.8e6, rel=0.01)
    assert parts["head"] == 16 * 128256 * 2048
    assert parts["attention"] < 0.02 * sum(parts.values())


def test_hours_follow_from_the_rate():
    model, m1_max = TRAINED[1], chip("M1 Max")
    seconds = 5e6 * sum(operations(model).values()) / (RATE_SHARE * m1_max.tflops * 1e12)
    assert hours(model, m1_max, 5e6) == pytest.approx(seconds / 3600)
    assert hours(model, chip("M5 Max"), 5e6) < hours(model, chip("M4 Max"), 5e6)


def test_the_rate_is_that_of_mlx_lms_guide():
    """250 tokens/s of Mistral 7B on an M1 Max, 4 of its 32 layers trained."""
    mistral = Shape("Mistral 7B", 32, 4096, 14336, 32, 8, 128, 32000)
    weights = sum(inputs * outputs for inputs, outputs in mistral.products)
    operations_of_a_token = (2 * 32 + 4 * 4) * weights + 4 * mistral.vocab * mistral.hidden
    share = 250 * operations_of_a_token / (chip("M1 Max").tflops * 1e12)
    assert share == pytest.approx(RATE_SHARE, rel=0.1)
