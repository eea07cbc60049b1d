"""MLX's groups as Core ML's: what they decode to, whatever their signs."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from specstream_mlx.convert.to_coreml.weights import Store, unpacked

GROUP = 32


def layer(weight, bits):
    """A quantized layer of a (out, in) weight."""
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    dense.weight = mx.array(weight, mx.float32)
    return dense.to_quantized(GROUP, bits)


def integers(groups):
    """(out, in) uint8 as coremltools writes them."""
    return groups.constant().flatten().reshape(groups.shape)


def decoded(groups):
    """(out, in) float64 of an encoded weight."""
    scale, offset = (
        np.repeat(a.astype(np.float64), GROUP, 1) for a in (groups.scale, groups.offset)
    )
    return scale * (integers(groups).astype(np.float64) - offset)


def worst_in_steps(module, groups):
    """The most by which an encoded weight is off MLX's own, in steps of its group."""
    kind = {"group_size": GROUP, "bits": module.bits}
    own = np.array(mx.dequantize(module.weight, module.scales, module.biases, **kind))
    steps = np.repeat(np.abs(np.array(module.scales, np.float64)), GROUP, 1)
    return (np.abs(decoded(groups) - own) / steps).max()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 0.05, shape)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_unpacked_integers_are_mlxs(bits):
    module = layer(normal(6, 3 * GROUP), bits)
    q = unpacked(module)
    scale, bias = (np.repeat(np.array(a), GROUP, 1) for a in (module.scales, module.biases))
    kind = {"group_size": GROUP, "bits": bits}
    own = np.array(mx.dequantize(module.weight, module.scales, module.biases, **kind))
    assert np.abs(scale * q + bias - own).max() < 1e-6
    assert q.max() < 2**bits


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_usual_groups_have_integer_offsets(bits):
    module = layer(normal(40, 4 * GROUP), bits)
    assert (np.array(module.scales) < 0).any()  # so some groups are turned around
    groups = Store().matrix("w", module)
    assert groups.offset.dtype == np.uint8
    assert groups.bits == (4 if bits <= 4 else 8)
    assert integers(groups).max() < 2**groups.bits
    found = worst_in_steps(module, groups)
    assert found < 0.2
    assert groups.error == pytest.approx(found, rel=0.02, abs=1e-3)


def test_what_no_offset_can_hold_is_dense():
    weight = normal(4, GROUP)
    weight[1] = 100 + 1e-3 * weight[1]
    module, store = layer(weight, 8), Store()
    dense = store.matrix("w", module)
    assert dense.dtype == np.float16
    assert store.report[0].form == "fp16"
    assert dense.astype(np.float64) == pytest.approx(weight, rel=1e-3, abs=1e-3)
