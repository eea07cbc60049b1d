"""Products of 2 to 16 rows with quantized weights by a Metal kernel of our own, where it has won.

MLX reads the weights anew for every two to five rows, and from some 10 to 30 rows on takes kernels
for many. This one reads them once, and sums in the same order whatever the number of rows. It is
used for the shapes and rows with which it has won a race on this chip (``race.py``), else nowhere.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from . import device, user_cache

ROWS = range(2, 17)
OUTPUTS = (1, 2, 4)
"""Outputs that a lane may compute at once: more share the reading of x, and need more registers."""

_GROUPS, _BITS = (32, 64, 128), (4, 8)
_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
_LEAST_GROUPS = 8  # MLX puts smaller arrays into another address space
_LANES, _SIMDGROUPS = 8, 2  # that share a row of weights; of a threadgroup

# x (R, inputs), w (outputs, inputs * BITS / 32) in words, scales and biases (outputs, inputs /
# GROUP), y (R, outputs). Eight lanes share a row of weights and take chunks of 32 of it in turn,
# each of 4 or 8 words, read as vectors; a simdgroup has 4 * OUT such rows. A chunk is unpacked in
# parts of 8 weights, which every row of x meets in registers. All sums are chains of fma in the
# order of the inputs, then the lanes' sums are added by twos.
BODY = """
    const uint lane = thread_index_in_simdgroup % 8;
    const uint slot = thread_index_in_simdgroup / 8;
    const uint simdgroup = threadgroup_position_in_grid.x * 2 + simdgroup_index_in_threadgroup;
    const uint inputs = x_shape[1];
    const uint outputs = w_shape[0];
    const uint chunks = inputs / 32;
    const uint first = (simdgroup * 4 + slot) * OUT;

    float sums[OUT][R];
    #pragma unroll
    for (uint o = 0; o < OUT; ++o) {
        #pragma unroll
        for (uint r = 0; r < R; ++r) {
            sums[o][r] = 0.0f;
        }
    }
    for (uint chunk = lane; chunk < chunks; chunk += 8) {
        uint words[OUT][BITS];
        float scale[OUT], offset[OUT];
        #pragma unroll
        for (uint o = 0; o < OUT; ++o) {
            const uint row = min(first + o, outputs - 1);
            const device uint4* stored = (const device uint4*)(w + (row * chunks + chunk) * BITS);
            #pragma unroll
            for (uint i = 0; i < BITS; ++i) {
                words[o][i] = stored[i / 4][i % 4];
            }
            const uint group = row * (inputs / GROUP) + chunk * 32 / GROUP;
            scale[o] = float(scales[group]);
            offset[o] = float(biases[group]);
        }
        #pragma unroll
        for (uint part = 0; part < 4; ++part) {
            float weight[OUT][8];
            #pragma unroll
            for (uint o = 0; o < OUT; ++o) {
                #pragma unroll
                for (uint i = 0; i < 8; ++i) {
                    const uint bit = (part * 8 + i) * BITS;
                    const uint code = (words[o][bit / 32] >> (bit % 32)) & ((1u << BITS) - 1u);
                    weight[o][i] = fma(scale[o], float(code), offset[o]);
                }
            }
            #pragma unroll
            for (uint r = 0; r < R; ++r) {
                const device T* from = x + r * inputs + chunk * 32 + part * 8;
                const vec<T, 4> low = *(const device vec<T, 4>*)from;
                const vec<T, 4> high = *(const device vec<T, 4>*)(from + 4);
                #pragma unroll
                for (uint i = 0; i < 8; ++i) {
                    const float value = float(i < 4 ? low[i % 4] : high[i % 4]);
                    #pragma unroll
                    for (uint o = 0; o < OUT; ++o) {
                        sums[o][r] = fma(weight[o][i], value, sums[o][r]);
                    }
                }
            }
        }
    }
    #pragma unroll
    for (uint o = 0; o < OUT; ++o) {
        #pragma unroll
        for (uint r = 0; r < R; ++r) {
            float sum = sums[o][r];
            sum += simd_shuffle_xor(sum, ushort(4));
            sum += simd_shuffle_xor(sum, ushort(2));
            sum += simd_shuffle_xor(sum, ushort(1));
            if (r % 8 == lane && first + o < outputs) {
                y[r * outputs + first + o] = T(sum);
            }
        }
    }
"""


@dataclass(frozen=True)
class Product:
    """A kind of product: its matrix, and the dtype of what it is multiplied with."""

    outputs: int
    inputs: int
    bits: int
    group_size: int
    dtype: str

    @property
    def fits(self) -> bool:
        """Whether the kernel can compute it."""
        known = self.bits in _BITS and self.group_size in _GROUPS and self.dtype in _DTYPES
        if not known or self.inputs % self.group_size:
            return False
        return self.outputs * self.inputs >= _LEAST_GROUPS * self.group_size

    @property
    def mlx_dtype(self) -> mx.Dtype:
        return _DTYPES[self.dtype]

    def __str__(self) -> str:
        shape = f"{self.outputs} x {self.inputs}"
        return f"{shape}, {self.bits} bits, groups of {self.group_size}, {self.dtype}"


def product_of(layer: Any) -> Product | None:
    """Return the kind of product of a quantized layer; ``None``: it is none for the kernel."""
    if layer.mode != "affine":
        return None
    outputs, words = layer.weight.shape
    dtype = str(layer.scales.dtype).removeprefix("mlx.core.")
    product = Product(outputs, words * 32 // layer.bits, layer.bits, layer.group_size, dtype)
    return product if product.fits else None


@cache
def _kernel() -> Callable[..., Any]:
    names = ["x", "w", "scales", "biases"]
    kernel: Any = mx.fast.metal_kernel("few_rows", names, ["y"], BODY)
    return kernel


def multiply(x: mx.array, layer: Any, outputs: int) -> mx.array:
    """Multiply rows x (2 to 16, inputs) by a layer's weights, ``outputs`` at once in a lane."""
    rows, columns = x.shape[0], layer.weight.shape[0]
    simdgroups = -(-columns // (32 // _LANES * outputs))
    threads = 32 * _SIMDGROUPS
    made: list[mx.array] = _kernel()(
        inputs=[x, layer.weight, layer.scales, layer.biases],
        template=[
            ("T", x.dtype),
            *(("R", rows), ("OUT", outputs), ("BITS", layer.bits), ("GROUP", layer.group_size)),
        ],
        grid=(-(-simdgroups // _SIMDGROUPS) * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(rows, columns)],
        output_dtypes=[x.dtype],
    )
    return made[0]


# Verdicts of races, by chip and version of MLX and of the kernel ---------------------------------

Times = dict[int, tuple[int, float, float]]
"""Of a product, by rows: outputs of a lane (0: MLX's own kernel has won), ms of MLX's, of ours."""


def restored(values: Any) -> dict[str, Times]:
    """Read times from JSON, by products' names; raises an error if they are damaged."""
    times = {
        name: {int(rows): (int(out), float(a), float(b)) for rows, (out, a, b) in each.items()}
        for name, each in values.items()
    }
    pairs = [(rows, out) for each in times.values() for rows, (out, *_) in each.items()]
    if any(rows not in ROWS or out not in (0, *OUTPUTS) for rows, out in pairs):
        raise ValueError("no such kernel")
    return times


DAMAGED = KeyError, TypeError, ValueError, AttributeError
"""The errors of ``restored``."""


def path() -> Path:
    return user_cache.directory() / "few-rows.json"


def _key() -> str:
    facts = device.describe()
    return ", ".join([facts["cpu"], facts["mlx"], hashlib.sha256(BODY.encode()).hexdigest()[:12]])


def store(times: dict[str, Times], said: str) -> None:
    """Keep the verdict of a race, in place of an earlier one."""
    user_cache.write(path(), user_cache.read(path()) | {_key(): {"said": said, "times": times}})
    verdict.cache_clear()


@cache
def verdict() -> tuple[dict[str, Times], str]:
    """Read the times by products' names, and the sentence, of the last race on this chip."""
    try:
        found = user_cache.read(path())[_key()]
        return restored(found["times"]), str(found["said"])
    except DAMAGED:
        return {}, "no race yet, so MLX's own kernels compute all products"


def has_won() -> bool:
    """Whether the kernel has won anything on this machine."""
    if device.backend() != "metal":
        return False
    return any(out for each in verdict()[0].values() for out, *_ in each.values())


def _multiplied(layer: Any, x: mx.array) -> mx.array | None:
    """Multiply by the kernel if it has won with such products; ``None``: it has not."""
    rows = x.size // x.shape[-1]
    product = product_of(layer) if rows in ROWS and x.dtype == layer.scales.dtype else None
    if product is None:
        return None
    out, *_ = verdict()[0].get(str(product), {}).get(rows, (0,))
    if not out:
        return None
    return multiply(x.reshape(rows, -1), layer, out).reshape(*x.shape[:-1], -1)


class FewRowsLinear(nn.QuantizedLinear):
    """A quantized linear layer that takes the kernel where that has won."""

    def __call__(self, x: mx.array) -> mx.array:
        y = _multiplied(self, x)
        if y is None:
            return super().__call__(x)
        return y + self.bias if "bias" in self else y


class FewRowsEmbedding(nn.QuantizedEmbedding):
    """Quantized token embeddings that do so when used as a tied LM head."""

    def as_linear(self, x: mx.array) -> mx.array:
        y = _multiplied(self, x)
        return super().as_linear(x) if y is None else y


KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.QuantizedLinear: FewRowsLinear,
    nn.QuantizedEmbedding: FewRowsEmbedding,
}
STOCK = {ours: stock for stock, ours in KINDS.items()}
