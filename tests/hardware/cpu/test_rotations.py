"""Shared rotations are the ropes', bit for bit, at every kind of positions."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE

from specstream_mlx.engine.borrowed_model import rope_at
from specstream_mlx.hardware import device
from specstream_mlx.hardware.cpu.rotations import shared_rotations

pytestmark = pytest.mark.skipif(device.backend() != "cpu", reason="for the CPU alone")

DIMS = 16
LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES = {
    "plain": lambda: nn.RoPE(DIMS, base=10000),
    "traditional": lambda: nn.RoPE(DIMS, traditional=True, base=1000),
    "linear": lambda: nn.RoPE(DIMS, base=10000, scale=0.5),
    "llama3": lambda: Llama3RoPE(DIMS, scaling_config=LLAMA3),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotations_are_the_ropes(name):
    rope = ROPES[name]()
    (rotations,) = shared_rotations([rope], rope_at)
    scattered = mx.array([70, 71, 71, 72, 9])
    for offset in (70, scattered, scattered + 1, 70, 71):
        rotations.begin()
        for heads in (4, 2):
            x = mx.random.normal((1, 5, heads, DIMS)).swapaxes(1, 2)
            assert mx.array_equal(rotations.rotate(x, offset), rope_at(rope, x, offset))
    rotations.begin()
    row = mx.random.normal((1, 2, 1, DIMS))
    assert mx.array_equal(rotations.rotate(row, 71), rope_at(rope, row, 71))


def test_equal_settings_share_and_others_do_not():
    ropes = [make() for make in ROPES.values()] + [make() for make in ROPES.values()]
    found = shared_rotations([*ropes, YarnRoPE(DIMS)], rope_at)
    assert found[-1] is None
    assert found[:4] == found[4:8]
    assert len(set(found[:4])) == 4
