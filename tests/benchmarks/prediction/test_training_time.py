"""Hours of training beside figures that were published or worked out by hand."""

import pytest

from benchmarks.prediction.apple_machines import chip
from benchmarks.prediction.metal_cost import Shape
from benchmarks.prediction.training_time import RATE_SHARE


def test_the_rate_is_that_of_mlx_lms_guide():
    """250 tokens/s of Mistral 7B on an M1 Max, 4 of its 32 layers trained."""
    mistral = Shape("Mistral 7B", 32, 4096, 14336, 32, 8, 128, 32000)
    weights = sum(inputs * outputs for inputs, outputs in mistral.products)
    operations_of_a_token = (2 * 32 + 4 * 4) * weights + 4 * mistral.vocab * mistral.hidden
    share = 250 * operations_of_a_token / (chip("M1 Max").tflops * 1e12)
    assert share == pytest.approx(RATE_SHARE, rel=0.1)
