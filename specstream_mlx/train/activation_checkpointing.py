"""Activation checkpointing: layers computed again in the backward pass, a few sequences at a time.

``mx.checkpoint`` computes a whole batch again at once. Here the batch goes in parts one after the
other, so that the memory of a layer is that of a part. A layer must not draw random numbers: it
would draw others the second time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

Tree = dict[str, Any]
"""A tree of arrays, as of ``nn.Module.trainable_parameters``."""

Layer = Callable[[int, Tree, list[mx.array], list[mx.array]], list[mx.array]]
"""From a part's number, parameters, and the part's inputs and constants to its outputs."""


@dataclass(frozen=True)
class Parts:
    """A batch in parts.

    Attributes:
        sequences: number of sequences in the batch.
        at_once: number of sequences in a part; the last one may have fewer.
    """

    sequences: int
    at_once: int

    @property
    def slices(self) -> list[slice]:
        """The sequences of each part."""
        starts = range(0, self.sequences, self.at_once)
        return [slice(s, min(s + self.at_once, self.sequences)) for s in starts]

    def cut(self, arrays: list[mx.array]) -> list[list[mx.array]]:
        """Cut arrays into parts; their first axis has as many rows for each sequence."""
        each = [len(array) // self.sequences for array in arrays]
        return [
            [a[p.start * n : p.stop * n] for a, n in zip(arrays, each, strict=True)]
            for p in self.slices
        ]


def checkpointed(
    layer: Layer,
    parts: Parts,
    parameters: Tree,
    inputs: list[mx.array],
    constants: list[mx.array],
) -> list[mx.array]:
    """Run a layer without keeping its intermediate results.

    Args:
        layer: function that computes a part from its arguments, and draws nothing.
        parts: the parts of the batch.
        parameters: the layer's parameters, which get gradients.
        inputs: arrays that get gradients, with as many rows for each sequence on the first axis.
        constants: arrays that get none, of the same form.

    Returns:
        The outputs of all parts, joined along their first axis.
    """
    flat = list(dict(tree_flatten(parameters)).items())
    count = len(flat)
    cut_constants = parts.cut(constants)

    def run(part: int, *arrays: mx.array) -> list[mx.array]:
        own = [(name, array) for (name, _), array in zip(flat, arrays, strict=False)]
        return layer(part, tree_unflatten(own), list(arrays[count:]), cut_constants[part])

    @mx.custom_function
    def forward(weights: list[mx.array], inputs: list[mx.array]) -> list[mx.array]:
        outputs: list[list[mx.array]] = []
        for part, own in enumerate(parts.cut(inputs)):
            outputs.append(run(part, *weights, *_after(own, outputs)))
        return [mx.concatenate(list(each)) for each in zip(*outputs, strict=True)]

    @forward.vjp
    def backward(
        primals: tuple[list[mx.array], list[mx.array]],
        cotangents: list[mx.array],
        outputs: list[mx.array],
    ) -> tuple[list[mx.array], list[mx.array]]:
        weights, inputs = primals
        gradients: list[list[mx.array]] = []
        all_parts = zip(parts.cut(inputs), parts.cut(cotangents), strict=True)
        for part, (own, slopes) in enumerate(all_parts):
            arrays = [*weights, *_after(own, gradients)]
            gradients.append(mx.vjp(lambda *given, n=part: run(n, *given), arrays, slopes)[1])
        columns = [list(each) for each in zip(*gradients, strict=True)]
        summed = [sum(each[1:], each[0]) for each in columns[:count]]
        return summed, [mx.concatenate(each) for each in columns[count:]]

    outputs: Any = forward([array for _, array in flat], inputs)
    return outputs


def _after(arrays: list[mx.array], earlier: list[list[mx.array]]) -> list[mx.array]:
    """Return the arrays, made to depend on the last part's results."""
    return mx.depends(arrays, earlier[-1]) if earlier else arrays
