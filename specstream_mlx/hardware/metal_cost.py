"""A model of what a forward costs on Metal: a roofline with MLX's switches between kernels.

A product takes as long as the longer of two things: reading its weights, and the arithmetic of
the kernel that MLX would choose. Which kernel that is was read in MLX's source at commit 846d176
(mlx/backend/metal: ``get_qmv_batch_limit``, ``dispatch_qmv``, ``qmm_splitk`` and ``qmm_nax`` in
quantized.cpp; ``gemv_wide_config``, ``GEMM_TPARAM_MACRO`` and the split-K cases in matmul.cpp;
``eval_gpu`` and ``use_fallback`` in scaled_dot_product_attention.cpp), and the limits are those of
0.32.4. How fast the kernels are was fitted to published timings; ``benchmarks/prediction`` lists
those and what the model makes of them. Everything that comes out of here is a prediction.
"""

import math
from dataclasses import dataclass
from typing import Literal

from .apple_chips import Chip, attention_kernel

Bits = Literal[4, 8, 16]

BANDWIDTH_SHARE = 0.9
"""Of the published bandwidth that streaming weights reaches: between 0.97 (M3 Max, mlx #3863) and
0.79 (M5, https://michaelstinkerings.org/apple-m5-gpu-roofline-analysis)."""

ULTRA_SHARE = 0.75
"""Of two dies' bandwidth and arithmetic that one kernel reaches: fitted to mlx #2031 and to the
Llama of https://github.com/raullenchai/Rapid-MLX/pull/586."""

QMV_INSTRUCTIONS = {13: 9.5, 14: 4.2, 15: 4.2, 16: 4.2, 17: 4.2}
"""Per weight and row of ``qmv``, by generation: 4.2 from M4 Pro before ``qmv_wide`` (mlx #3839) and
mlx #2031; for M1 from one measurement of another runtime over MLX's kernels, the weakest figure
here (https://github.com/lablup/mlxcel/pull/1197)."""

WIDE_DECODE_INSTRUCTIONS, WIDE_ROW_INSTRUCTIONS = 3.35, 2.4
"""Per weight of ``qmv_wide``: for decoding it, once in each pass, and for each row. Fitted to four
and six rows of mlx #3863 (M3 Max); 8 bits are assumed to decode as fast as 4."""

M5_ISSUE = 1.25
"""Instructions of ``qmv_wide`` and ``qmv`` that M5 finishes in the time of one of M3's, fitted to
eight and twelve rows of mlx #3791 (M5 Max)."""

GEMM_SHARE = 0.79
"""Of the ALUs' rate that a matrix kernel reaches: 32 rows of mlx #3863."""

NAX_SHARE = {32: 0.35, 64: 0.5}
"""Of the matrix units' rate, by rows of a tile: mlx #4171 (M5, 32 and 64) and #3791 (64)."""

WIDE_ROWS, QMM_TILE, GROUP = 5, 32, 64
"""Rows of a ``qmv_wide`` pass, rows of a ``qmm`` tile, weights that share a scale and a bias."""

ATTENTION_INSTRUCTIONS = 4.8
"""Per query row, key, head and dimension of the vector kernel, beside reading the keys and values
once: fitted to 1 to 8 rows over 16k and 32k keys on M3 Max (mlx #3826), M4 Pro (mlx-dspark) and
M5 Max (mlx #3838). It is linear in rows."""

ATTENTION_CLOCKS, ATTENTION_TILE = 1.6, 32
"""Per key and dimension of a threadgroup of the full kernel, which has one head and up to so many
rows, fitted to 12 and 16 rows there: 197, 211 and 204 clocks per key of 128 dimensions on three
generations. Cores are idle meanwhile: two threadgroups of 32 heads fit on each of M4 Pro's 20."""

LAYER_MS = 0.04
"""An assumption: small kernels and launches of a layer that overlap with no read, in every pass.
Plain decoding of 0.6 B to 70 B models (``published_points``) leaves 0.03 to 0.09."""

HOST_STEP_MS, HOST_LAYER_MS = 0.1, 0.012
"""The host reads the accepted tokens before it can build the next step; plain decoding in mlx_lm
builds ahead. That is what a compiled step with streams takes on the Linux test machine, by its
number of layers (NOTES.md); that a Mac takes as long is an assumption."""

HEAD_WIDTH, HEAD_RANK, HEAD_SHORTLIST = 4, 128, 64
"""Of the trainers' heads: paths that a stream guesses for, their rank, tokens of a shortlist."""


@dataclass(frozen=True)
class Work:
    kernel: str  # MLX's name of it
    reads: int  # how often the weights come from memory
    seconds: float  # of arithmetic


@dataclass(frozen=True)
class Shape:
    """A Llama, as in its ``config.json``."""

    name: str  # of the model
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def products(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's products: q, k, v, o, gate, up, down."""
        kv = self.kv_heads * self.head_dim
        query = self.heads * self.head_dim
        return [
            (self.hidden, query),
            (self.hidden, kv),
            (self.hidden, kv),
            (query, self.hidden),
            (self.hidden, self.intermediate),
            (self.hidden, self.intermediate),
            (self.intermediate, self.hidden),
        ]

    def gigabytes(self, bits: Bits) -> float:
        """Weights that are in memory, the embedding counted with the head (tied, or not read)."""
        weights = self.layers * sum(k * n for k, n in self.products) + self.hidden * self.vocab
        return weights * bytes_per_weight(bits) / 1e9


def bytes_per_weight(bits: Bits) -> float:
    """Bytes of one weight, scale and bias of its group included."""
    return 2.0 if bits == 16 else (bits + 32 / GROUP) / 8


def work(
    chip: Chip, bits: Bits, rows: int, inputs: int, outputs: int, limit: int | None = None
) -> Work:
    """The kernel of a product and what it costs."""
    if bits == 16:
        return _dense(chip, rows, inputs, outputs)
    weights = inputs * outputs
    if rows >= (limit or chip.rows_before_tiles(inputs, outputs)):
        # Below 257 column tiles split-K takes over, which has no form for the matrix units.
        split = rows <= QMM_TILE and math.ceil(outputs / QMM_TILE) <= 256
        if chip.generation >= 17 and not split:
            return _matrix_units(chip, "qmm_nax", 32 if rows <= 32 else 64, rows, weights)
        return _tiles(chip, "qmm_splitk" if split else "qmm", QMM_TILE, rows, weights)
    if rows > 1 and chip.generation >= 15:
        passes = math.ceil(rows / WIDE_ROWS)
        padded = passes * math.ceil(rows / passes)
        each = passes * WIDE_DECODE_INSTRUCTIONS + padded * WIDE_ROW_INSTRUCTIONS
        return Work("qmv_wide", passes, each * weights / _vector_rate(chip))
    # Neighbouring threadgroups read the same weights for different rows: the cache serves them.
    each = rows * QMV_INSTRUCTIONS[chip.generation]
    return Work("qmv", 1, each * weights / _vector_rate(chip))


def product_ms(
    chip: Chip, bits: Bits, rows: int, inputs: int, outputs: int, limit: int | None = None
) -> float:
    """Milliseconds of ``rows`` rows times the transposed weights; arguments as of ``work``."""
    done = work(chip, bits, rows, inputs, outputs, limit)
    read = done.reads * inputs * outputs * bytes_per_weight(bits) / _bandwidth(chip)
    return 1e3 * max(read, done.seconds)


def attention_ms(chip: Chip, shape: Shape, rows: int, context: int) -> float:
    """Milliseconds of one layer's attention over ``context`` keys and the new ones, in 16 bits."""
    keys, dims = context + rows, shape.head_dim
    read = 2 * 2 * keys * shape.kv_heads * dims / _bandwidth(chip)
    kernel = attention_kernel(rows, shape.heads // shape.kv_heads, dims)
    if kernel == "vector":
        work = ATTENTION_INSTRUCTIONS * 2 * rows * keys * shape.heads * dims
        return 1e3 * (read + work / (chip.instructions * _share(chip)))
    tiles = shape.heads * math.ceil(rows / ATTENTION_TILE)
    if kernel == "full":
        turns = math.ceil(tiles / (2 * chip.cores))
        return 1e3 * max(read, turns * ATTENTION_CLOCKS * keys * dims / (1e9 * chip.clock))
    # Two products, and scores that are written and read by each and by the softmax between them.
    scores = 4 * 2 * rows * keys * shape.heads / _bandwidth(chip)
    flops = 4 * ATTENTION_TILE * tiles * keys * dims
    return 1e3 * (max(read, flops / (GEMM_SHARE * _alu_flops(chip))) + scores)


def layers_ms(
    chip: Chip,
    shape: Shape,
    bits: Bits,
    rows: int,
    layers: int,
    context: int,
    limit: int | None = None,
) -> float:
    """Milliseconds of ``rows`` rows through ``layers`` layers; linear in the layers."""
    products = sum(product_ms(chip, bits, rows, k, n, limit) for k, n in shape.products)
    return layers * (products + attention_ms(chip, shape, rows, context) + LAYER_MS)


def head_ms(chip: Chip, shape: Shape, bits: Bits, rows: int, limit: int | None = None) -> float:
    return product_ms(chip, bits, rows, shape.hidden, shape.vocab, limit)


def forward_ms(
    chip: Chip, shape: Shape, bits: Bits, rows: int, context: int, limit: int | None = None
) -> float:
    through = layers_ms(chip, shape, bits, rows, shape.layers, context, limit)
    return through + head_ms(chip, shape, bits, rows, limit)


def stream_heads_ms(chip: Chip, shape: Shape, bits: Bits, streams: int) -> float:
    """Milliseconds in which the accepted node's streams guess, by one pass of the head."""
    h = shape.hidden
    each = product_ms(chip, 16, HEAD_WIDTH, 2 * h, HEAD_RANK)
    each += product_ms(chip, 16, HEAD_WIDTH, HEAD_RANK, h) + LAYER_MS
    each += product_ms(chip, bits, HEAD_WIDTH, h, HEAD_SHORTLIST)
    return streams * each + (head_ms(chip, shape, bits, streams) if streams else 0.0)


def step_ms(
    chip: Chip,
    shape: Shape,
    bits: Bits,
    rows: int,
    context: int,
    msa_layers: int = 0,
    stream_rows: int = 0,
    guesses: int = 0,
) -> float:
    """Milliseconds of a step that verifies a tree of ``rows`` nodes, host included.

    ``stream_rows`` more rows go through the top ``msa_layers``; then ``guesses`` streams guess.
    """
    device = layers_ms(chip, shape, bits, rows, shape.layers - msa_layers, context)
    device += layers_ms(chip, shape, bits, rows + stream_rows, msa_layers, context)
    device += head_ms(chip, shape, bits, rows) + stream_heads_ms(chip, shape, bits, guesses)
    return HOST_STEP_MS + HOST_LAYER_MS * shape.layers + device


def _dense(chip: Chip, rows: int, inputs: int, outputs: int) -> Work:
    """Products with 16-bit weights."""
    weights = inputs * outputs
    if rows == 1:
        return Work("gemv", 1, 0.0)
    passes = math.ceil(rows / WIDE_ROWS)
    if chip.generation >= 15 and passes <= 3:
        # Later passes find the rows of weights in the cache: mlx #3888 is flat from 2 to 8 rows.
        padded = passes * math.ceil(rows / passes)
        seconds = padded * WIDE_ROW_INSTRUCTIONS * weights / _vector_rate(chip)
        return Work("gemv_wide", 1, seconds)
    if chip.generation >= 17:
        return _matrix_units(chip, "gemm_nax", 64, rows, weights)
    most = 2048 if chip.name.endswith(("Max", "Ultra")) else 1024
    if inputs >= max(rows, outputs) and math.ceil(rows / 16) * math.ceil(outputs / 16) <= most:
        return _tiles(chip, "gemm_splitk", 16 if rows < 40 else 32, rows, weights)
    return _tiles(chip, "gemm", 64, rows, weights)


def _tiles(chip: Chip, kernel: str, tile: int, rows: int, weights: int) -> Work:
    padded = tile * math.ceil(rows / tile)
    return Work(kernel, 1, 2 * padded * weights / (GEMM_SHARE * _alu_flops(chip)))


def _matrix_units(chip: Chip, kernel: str, tile: int, rows: int, weights: int) -> Work:
    padded = tile * math.ceil(rows / tile)
    assert chip.matrix_tflops is not None
    rate = NAX_SHARE[tile] * 1e12 * chip.matrix_tflops
    return Work(kernel, 1, 2 * padded * weights / rate)


def _share(chip: Chip) -> float:
    return ULTRA_SHARE if chip.ultra else 1.0


def _bandwidth(chip: Chip) -> float:
    return BANDWIDTH_SHARE * _share(chip) * 1e9 * chip.bandwidth


def _alu_flops(chip: Chip) -> float:
    return 1e12 * chip.tflops * _share(chip)


def _vector_rate(chip: Chip) -> float:
    """Instructions per second of the matrix-vector kernels."""
    issue = M5_ISSUE if chip.generation >= 17 else 1.0
    return chip.instructions * _share(chip) * issue
