"""Packages of one matrix alone, for encodings that no usual weight needs."""

import coremltools as ct
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
from specstream_mlx.convert.to_coreml.package import converted, save
from specstream_mlx.convert.to_coreml.weights import Constants, Store

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


def write_package(module, path):
    """Save a package that multiplies ``x`` (3, in) by the layer's weight; how it was written."""
    store = Store()
    shape = 3, module.scales.shape[1] * GROUP
    inputs = {"x": mb.placeholder(shape=shape, dtype=types.fp32)}
    with Function(inputs, opset_version=ct.target.iOS18) as function:
        x = mb.cast(x=function.inputs["x"], dtype="fp16")
        y = mb.linear(x=x, weight=Constants(store).matrix("w", module))
        function.set_outputs([mb.cast(x=y, dtype="fp32", name="y")])
    program = Program()
    program.add_function(NAME, function)
    save(converted(program), path)
    return store.report[0]
