"""Groups that have no integer offset, or no spread, as a saved package holds them."""

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from coreml_matrices import GROUP, NAME, purpose_made, quantized, write_package
from specstream_mlx.convert.to_coreml import weights
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.weights import Store


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


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("kinds", "form"),
    [
        (("usual", "zero", 0.3, -0.7, 1e-3, "usual"), "int{}"),
        (("usual", "positive", "zero", -0.7, "negative"), "int{}, float offsets"),
        (("zero", "zero"), "int{}"),
    ],
)
def test_purpose_made_groups_are_written_and_read(bits, kinds, form, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_ROWS", 2)  # so that the encoded rows are put together
    module = quantized(purpose_made(*kinds), bits)
    line = write_package(module, tmp_path / "x.mlpackage")
    assert line.form == form.format(bits)
    package = Package(tmp_path / "x.mlpackage")
    worst, of_even = off_in_steps(package, module)
    assert worst < 0.5
    assert of_even < 1e-3
    x = np.random.default_rng(1).normal(size=(3, 2 * GROUP)).astype(np.float32)
    y = package.call(NAME, {"x": x})["y"]
    assert y == pytest.approx(x @ package.weights(NAME)["w"].T, abs=1e-5)


@pytest.mark.parametrize("bits", [None, 8])
def test_some_rows_are_written_as_in_the_whole(bits):
    dense = purpose_made("usual", "positive", "usual", 0.3)
    module = quantized(dense, 8)
    if bits is None:
        import mlx.nn as nn

        module = nn.Linear(*dense.shape[::-1], bias=False)
    store, ids = Store(release=True), np.array([3, 0])
    whole, rows = store.matrix("w", module), store.rows("some", "w", module, ids)
    assert not np.array(module.weight).any()  # released
    if bits is None:
        assert (rows == whole[ids]).all()
    else:
        for name in ("held", "scale", "offset"):
            assert (getattr(rows, name) == getattr(whole, name)[ids]).all()
