"""MLX's groups as Core ML's, also those without integer offset or spread: what they decode to."""

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from specstream_mlx.convert.to_coreml import weights
from specstream_mlx.convert.to_coreml.weights import WeightStore, encode

GROUP = 32
BITS = [(2, 4), (3, 4), (4, 4), (5, 8), (6, 8), (8, 8)]  # and those of the type that holds them


def purpose_made(*kinds, seed=0):
    """(rows, 2 groups) weights; each row's second group is of a kind, or all of it is a number."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(0, 0.05, (len(kinds), 2 * GROUP))
    for row, kind in enumerate(kinds):
        if kind in ("positive", "negative"):
            sign = 1 if kind == "positive" else -1
            weight[row, GROUP:] = sign * (0.5 + np.abs(weight[row, GROUP:]))
        elif kind != "usual":
            weight[row, GROUP:] = 0 if kind == "zero" else kind
    return weight


def quantized(weight, bits):
    """A quantized layer of a (out, in) weight."""
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    dense.weight = mx.array(weight, mx.float32)
    return dense.to_quantized(GROUP, bits)


def decoded(groups):
    """(out, in) what Core ML makes of them."""
    scale, offset = (np.repeat(a.astype(float), GROUP, 1) for a in (groups.scale, groups.offset))
    return scale * (groups.q - offset)


def off_in_steps(groups, module):
    """The most by which it is off MLX's own, in steps of a group, or else of its value."""
    kind, scales = {"group_size": GROUP, "bits": module.bits}, np.array(module.scales, np.float64)
    own = np.array(mx.dequantize(module.weight, module.scales, module.biases, **kind), np.float64)
    even = own.reshape(*scales.shape, GROUP)
    flat = even.max(-1) == even.min(-1)
    steps = np.where(flat, np.maximum(np.abs(even[..., 0]), 1e-6), np.abs(scales))
    off = np.abs(decoded(groups) - own) / np.repeat(steps, GROUP, 1)
    return off.max(), off[np.repeat(flat, GROUP, 1)].max(initial=0)


@pytest.mark.parametrize(("bits", "container"), BITS)
def test_groups_of_all_kinds(bits, container, monkeypatch):
    monkeypatch.setattr(weights, "_ROWS", 2)  # so that unpacked rows are put together
    for kinds, offsets in (
        (("usual", "zero", 0.3, -0.7, 1e-3, "usual"), np.int8),
        (("usual", "positive", "zero", -0.7, "negative"), np.float16),
    ):
        module = quantized(purpose_made(*kinds), bits)
        groups = encode(module)
        assert (groups.bits, groups.offset.dtype) == (container, offsets)
        assert np.abs(groups.q.astype(int) + 0.5).max() < 2 ** (container - 1)
        worst, of_even = off_in_steps(groups, module)
        assert worst < weights._WORST
        assert of_even < 1e-3
    # Offsets that are no integers, as GGUF's are, are not rounded to one.
    module, rng = quantized(purpose_made(*["usual"] * 6), bits), np.random.default_rng(2)
    steps = np.array(module.scales)
    module.biases = mx.array(np.array(module.biases) + rng.uniform(0, 1, steps.shape) * steps)
    groups = encode(module)
    assert groups.offset.dtype == np.float16
    assert off_in_steps(groups, module)[0] < 0.1 / 2 ** max(0, 8 - bits)


def test_what_no_offset_can_hold_is_dense():
    dense = purpose_made("usual", "positive", "usual", 0.3)
    dense[1] = 100 + 1e-3 * dense[1]
    store, module = WeightStore(release=True), quantized(dense, 8)
    found = store.matrix("w", module)
    assert store.report[0].form == "fp16"
    assert found.astype(np.float64) == pytest.approx(dense, rel=1e-3, abs=1e-3)
    assert not np.array(module.weight).any()  # released
