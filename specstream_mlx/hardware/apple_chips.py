"""Apple chips: bandwidth, GPU cores and clock, and where MLX's kernels switch on them.

``apple_chips.json`` has the figures with their sources; matrix rates are derived from them.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ALUS_PER_CORE = 128
"""Multiply-adds of a GPU core per clock, M1 to M5
(https://github.com/philipturner/metal-benchmarks, https://tzakharko.github.io/
apple-neural-accelerators-benchmark)."""

MATRIX_FLOPS_PER_CORE = 1024
"""FP16 operations of an M5 core's matrix unit per clock: an estimate from measurements of the A19
(https://tzakharko.github.io/apple-neural-accelerators-benchmark)."""


@dataclass(frozen=True)
class Chip:
    name: str  # as Apple sells it
    generation: int  # of the GPU, the digits of MLX's ``applegpu_g15s``: M1 13 to M5 17
    bandwidth: float  # of the memory, GB/s
    cores: int  # of the GPU
    clock: float  # of the GPU, GHz
    memory: int  # the most that can be had, GB
    source: str  # of bandwidth, cores and memory
    clock_source: str  # of the clock, and what kind of figure it is

    @property
    def ultra(self) -> bool:
        """Two dies in one package; MLX's architecture letter is then ``d``."""
        return self.name.endswith("Ultra")

    @property
    def instructions(self) -> float:
        """Instructions of all ALUs per second."""
        return self.cores * ALUS_PER_CORE * self.clock * 1e9

    @property
    def tflops(self) -> float:
        """Derived rate of the ALUs in FP16 or FP32: cores x 128 x clock x 2."""
        return 2e-12 * self.instructions

    @property
    def matrix_tflops(self) -> float | None:
        """Derived FP16 rate of the matrix units, ``None`` before M5: cores x 1024 x clock."""
        if self.generation < 17:
            return None
        return 1e-3 * self.cores * MATRIX_FLOPS_PER_CORE * self.clock

    @property
    def kernels(self) -> str:
        """MLX's kernels for quantized products of a few rows, and those above their limit."""
        if self.generation < 15:
            return "qmv, qmm"
        return "qmv_wide, qmm" if self.generation < 17 else "qmv_wide, qmm (NAX)"

    def rows_before_tiles(self, inputs: int, outputs: int) -> int:
        """Rows from which MLX multiplies quantized weights tile by tile instead of row by row."""
        size = max(inputs, outputs)
        limits = _table()["rows_before_tiles"]["ultra" if self.ultra else str(self.generation)]
        limit: int = limits[0 if size <= 2048 else 1 if size <= 4096 else 2]
        return limit


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
    return table


@cache
def chips() -> tuple[Chip, ...]:
    return tuple(Chip(**fields) for fields in _table()["chips"])


def attention_kernel(rows: int, group: int, head_dim: int) -> str:
    """Name MLX's kernel for attention of so many query rows, ``group`` heads to a key head."""
    limits = _table()["attention"]
    if rows <= limits["most_rows"]:
        fits = rows * group <= limits["most_rows_times_group"] and head_dim in limits["vector"]
        return "vector" if fits else "unfused"
    return "full" if head_dim in limits["full"] else "unfused"


def chip(name: str) -> Chip:
    return next(c for c in chips() if c.name == name)


def chip_in(processor: str) -> Chip | None:
    """Return the chip of a processor's name, such as ``Apple M4 Pro``; ``None``: it is not listed.

    A generation after the listed ones is taken for the newest of them.
    """
    known = {c.name: c for c in chips()}
    family, _, kind = processor.removeprefix("Apple ").partition(" ")
    if not (processor.startswith("Apple M") and family[1:].isdecimal()):
        return None
    for generation in range(min(int(family[1:]), 99), 0, -1):
        found = known.get(f"M{generation} {kind}".strip())
        if found is not None:
            return found
    return None
