"""Blocks of GGUF's quantized types as MLX's quantized weights, in groups of 32.

A block of 32 with a scale and a minimum is MLX's affine group with other places for its bits, so
nothing is quantized anew: value = scale * code + bias, scale and bias computed in float32 as the
``gguf`` package computes them, and the codes copied. What MLX has no groups for (Q6_K has 16
weights a scale) is quantized anew to 8 bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

GROUP_SIZE = 32
_CHUNK = 2**22
"""Weights that are unpacked at a time, so that memory does not grow with the tensor."""

_Type = GGMLQuantizationType
Blocks = np.ndarray
"""(blocks, bytes of a block), uint8"""


@dataclass(frozen=True)
class Packing:
    """Form in which a type is held in MLX; without parts its weights are quantized anew.

    ``parts`` makes of blocks (blocks, groups) float32 scales and biases, ``codes`` (blocks,
    weights) uint8.
    """

    bits: int
    parts: Callable[[Blocks], tuple[np.ndarray, np.ndarray]] | None = None
    codes: Callable[[Blocks], np.ndarray] | None = None


def _half(blocks: Blocks, place: int) -> np.ndarray:
    """The float16 at a place of each block, as (blocks, 1) float32."""
    return np.ascontiguousarray(blocks[:, place : place + 2]).view("<f2").astype(np.float32)


def _centred(by: int) -> Callable[[Blocks], tuple[np.ndarray, np.ndarray]]:
    """Scale alone; the codes are above 0 by ``by``."""
    return lambda blocks: (_half(blocks, 0), np.float32(-by) * _half(blocks, 0))


def _with_minimum(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    return _half(blocks, 0), _half(blocks, 2)


def _k_parts(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Eight groups a block, their scales and minima 6 bits each in 12 bytes."""
    low, middle, high = (blocks[:, place : place + 4] for place in (4, 8, 12))
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Of each run of bytes all low nibbles, then all high ones; runs lie along the last axis."""
    return np.concatenate([data & 15, data >> 4], axis=-1).reshape(len(data), -1)


def _fifth_bits(data: np.ndarray) -> np.ndarray:
    """Bit by bit, (blocks, bytes) to (blocks, 8 * bytes) of 0 or 16."""
    return np.unpackbits(data, axis=-1, bitorder="little") << 4


def _q5_codes(place: int) -> Callable[[Blocks], np.ndarray]:
    return lambda blocks: (
        _nibbles(blocks[:, place + 4 :]) | _fifth_bits(blocks[:, place : place + 4])
    )


def _k_nibbles(blocks: Blocks) -> np.ndarray:
    return _nibbles(blocks[:, -128:].reshape(len(blocks), 4, 32))


def _q5_k_codes(blocks: Blocks) -> np.ndarray:
    high = blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1  # one bit a group
    return _k_nibbles(blocks) | (high << 4).swapaxes(1, 2).reshape(len(blocks), -1)


PACKINGS = {
    _Type.Q4_0: Packing(4, _centred(8), lambda blocks: _nibbles(blocks[:, 2:])),
    _Type.Q4_1: Packing(4, _with_minimum, lambda blocks: _nibbles(blocks[:, 4:])),
    _Type.Q5_0: Packing(5, _centred(16), _q5_codes(2)),
    _Type.Q5_1: Packing(5, _with_minimum, _q5_codes(4)),
    _Type.Q8_0: Packing(8, _centred(128), lambda blocks: blocks[:, 2:] ^ 128),
    _Type.Q4_K: Packing(4, _k_parts, _k_nibbles),
    _Type.Q5_K: Packing(5, _k_parts, _q5_k_codes),
    _Type.Q6_K: Packing(8),
}
"""The quantized types that are read; all others are refused."""

DENSE = (_Type.F16, _Type.BF16, _Type.F32)


def floats(kind: _Type, data: np.ndarray) -> Iterator[np.ndarray]:
    """The float32 numbers of a tensor's bytes (rows, bytes of a row), a chunk at a time.

    These are a dense tensor's values, or scales and biases of one that is repacked.
    """
    if kind in DENSE:
        for values in _chunks(kind, data):
            yield dequantize(values, kind).reshape(-1)
    elif (parts := PACKINGS[kind].parts) is not None:
        for blocks in _chunks(kind, data):
            yield from parts(blocks)


def repack(kind: _Type, data: np.ndarray, dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    """A quantized tensor's bytes (rows, bytes of a row) as MLX has them.

    These are packed (rows, columns * bits / 32) uint32, and (rows, columns / 32) scales and biases.
    """
    packing, rows = PACKINGS[kind], len(data)
    packed, scales, biases = [], [], []
    for blocks in _chunks(kind, data):
        if packing.parts is not None and packing.codes is not None:
            scale, bias = map(mx.array, packing.parts(blocks))
            words = mx.array(_pack(packing.codes(blocks), packing.bits))
        else:
            values = mx.array(dequantize(blocks, kind))
            words, scale, bias = mx.quantize(values, GROUP_SIZE, packing.bits)
        packed.append(words.reshape(-1))
        scales.append(scale.reshape(-1).astype(dtype))
        biases.append(bias.reshape(-1).astype(dtype))
        mx.eval(packed[-1], scales[-1], biases[-1])
    words, scale, bias = map(mx.concatenate, (packed, scales, biases))
    return words.reshape(rows, -1), scale.reshape(rows, -1), bias.reshape(rows, -1)


def _chunks(kind: _Type, data: np.ndarray) -> Iterator[Blocks]:
    width, size = GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1, size)
    step = _CHUNK // width
    for begin in range(0, len(blocks), step):
        yield np.asarray(blocks[begin : begin + step])


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes side by side from the lowest bit on, in uint32."""
    if bits == 8:
        packed = codes
    elif bits == 4:
        packed = codes[:, ::2] | codes[:, 1::2] << 4
    else:  # 8 codes of b bits are b bytes
        shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
        words = (codes.reshape(-1, 8).astype(np.uint64) << shifts).sum(1, dtype=np.uint64)
        packed = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :bits]
    return np.ascontiguousarray(packed).reshape(-1).view("<u4")
