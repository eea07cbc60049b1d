"""MLX's groups as Core ML's, also those without integer offset or spread: what they decode to."""

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

import coremltools as ct
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
from specstream_mlx.convert.to_coreml import weights
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.export import save
from specstream_mlx.convert.to_coreml.weights import Store, constant, unpacked

GROUP = 32
NAME = "main"


def purpose_made(*kinds, seed=0):
    """(rows, 2 groups) weights; in the middle of each row's second group one of these kinds:
    ``positive``, ``negative``, ``zero``, or a number that the whole group has.
    """
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


def with_float_offsets(module):
    """The same layer, each of its groups shifted by another part of a step, as GGUF's are."""
    rng, steps = np.random.default_rng(2), np.array(module.scales)
    module.biases = mx.array(np.array(module.biases) + rng.uniform(0, 1, steps.shape) * steps)
    return module


def write_package(module, path):
    """Save a package that multiplies ``x`` (3, in) by the layer's weight; how it was written."""
    store = Store()
    shape = 3, module.scales.shape[1] * GROUP
    inputs = {"x": mb.placeholder(shape=shape, dtype=types.fp32)}
    with Function(inputs, opset_version=ct.target.iOS18) as function:
        x = mb.cast(x=function.inputs["x"], dtype="fp16")
        y = mb.linear(x=x, weight=constant("w", store.matrix("w", module)))
        function.set_outputs([mb.cast(x=y, dtype="fp32", name="y")])
    program = Program()
    program.add_function(NAME, function)
    save(program, path, {})
    return store.report[0]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_unpacked_integers_are_mlxs(bits):
    module = quantized(purpose_made(*["usual"] * 6), bits)
    q = unpacked(module)
    scale, bias = (np.repeat(np.array(a), GROUP, 1) for a in (module.scales, module.biases))
    kind = {"group_size": GROUP, "bits": bits}
    own = np.array(mx.dequantize(module.weight, module.scales, module.biases, **kind))
    assert np.abs(scale * q + bias - own).max() < 1e-6
    assert q.max() < 2**bits


def off_in_steps(package, module):
    """The most by which what a package holds is off MLX's own, in steps of its group; groups
    without spread, which have no steps, relative to their value.
    """
    kind = {"group_size": GROUP, "bits": module.bits}
    scales = np.array(module.scales, np.float64)
    own = np.array(mx.dequantize(module.weight, module.scales, module.biases, **kind), np.float64)
    even = own.reshape(*scales.shape, GROUP)
    flat = even.max(-1) == even.min(-1)
    steps = np.where(flat, np.maximum(np.abs(even[..., 0]), 1e-6), np.abs(scales))
    off = np.abs(package.weights(NAME)["w"] - own) / np.repeat(steps, GROUP, 1)
    return off.max(), off[np.repeat(flat, GROUP, 1)].max(initial=0)


@pytest.mark.parametrize(("bits", "kind"), [(2, "int4"), (4, "int4"), (5, "int8"), (8, "int8")])
@pytest.mark.parametrize(
    ("kinds", "form"),
    [
        (("usual", "zero", 0.3, -0.7, 1e-3, "usual"), "{}"),
        (("usual", "positive", "zero", -0.7, "negative"), "{}, float offsets"),
        (("zero", "zero"), "{}"),
    ],
)
def test_purpose_made_groups_are_written_and_read(bits, kind, kinds, form, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_ROWS", 2)  # so that the encoded rows are put together
    module = quantized(purpose_made(*kinds), bits)
    line = write_package(module, tmp_path / "x.mlpackage")
    assert line.form == form.format(kind)
    package = Package(tmp_path / "x.mlpackage")
    worst, of_even = off_in_steps(package, module)
    assert worst < weights._WORST
    assert of_even < 1e-3
    x = np.random.default_rng(1).normal(size=(3, 2 * GROUP)).astype(np.float32)
    y = package.call(NAME, {"x": x})["y"]
    assert y == pytest.approx(x @ package.weights(NAME)["w"].T, abs=1e-5)


@pytest.mark.parametrize(("bits", "bound"), [(2, 0.01), (4, 0.01), (5, 0.02), (8, 0.1)])
def test_offsets_that_are_no_integers_are_not_rounded_to_one(bits, bound, tmp_path):
    module = with_float_offsets(quantized(purpose_made(*["usual"] * 6), bits))
    line = write_package(module, tmp_path / "x.mlpackage")
    assert line.form == f"int{4 if bits <= 4 else 8}, float offsets"
    assert line.uneven > 0.5 * line.groups
    worst, _ = off_in_steps(Package(tmp_path / "x.mlpackage"), module)
    assert worst < bound


def test_some_rows_are_written_as_in_the_whole():
    dense = purpose_made("usual", "positive", "usual", 0.3)
    ids = np.array([3, 0])
    for module in (quantized(dense, 8), nn.Linear(*dense.shape[::-1], bias=False)):
        store = Store(release=True)
        whole, rows = store.matrix("w", module), store.rows("some", "w", module, ids)
        assert not np.array(module.weight).any()  # released
        if isinstance(whole, np.ndarray):
            assert (rows == whole[ids]).all()
        else:
            for name in ("q", "scale", "offset"):
                assert (getattr(rows, name) == getattr(whole, name)[ids]).all()


def test_what_no_offset_can_hold_is_dense():
    weight = purpose_made(*["usual"] * 4)
    weight[1] = 100 + 1e-3 * weight[1]
    module, store = quantized(weight, 8), Store()
    dense = store.matrix("w", module)
    assert dense.dtype == np.float16
    assert store.report[0].form == "fp16"
    assert dense.astype(np.float64) == pytest.approx(weight, rel=1e-3, abs=1e-3)
