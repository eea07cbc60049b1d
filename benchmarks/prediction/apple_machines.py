"""Apple chips as published: memory bandwidth, GPU cores and clock, each figure with its source.

Apple publishes bandwidth and cores, but neither clocks nor matrix rates. A clock is therefore
``measured`` by somebody, ``listed`` in a database of GPUs, or ``assumed`` to be that of a sister
chip; matrix rates are derived from it. The largest configuration of a chip is meant. Chips of
which no published figures were found are left out, Ultras of M4 and M5 among them.
"""

from dataclasses import dataclass

ALUS_PER_CORE = 128
"""Multiply-adds of a GPU core per clock, M1 to M5
(https://github.com/philipturner/metal-benchmarks, https://tzakharko.github.io/
apple-neural-accelerators-benchmark)."""

MATRIX_FLOPS_PER_CORE = 1024
"""FP16 operations of an M5 core's matrix unit per clock: an estimate from measurements of the A19
(https://tzakharko.github.io/apple-neural-accelerators-benchmark)."""

_METAL_BENCHMARKS = "https://github.com/philipturner/metal-benchmarks"
_HMC = "https://hmc-tech.com/gpu"
_ABACHY = "https://abachy.com/news/apples-m3-series-chips-enhanced-performance-and-advanced-gpus"
_SOMAG = (
    "https://www.somagnews.com/from-the-m1-to-the-m1-ultra-see-the-specifications-of-apples-chips/"
)
_M2_PRO_MAX = (
    "https://ma4p.com/14851/"
    "apple-unveils-m2-pro-and-m2-max-more-cpu-and-gpu-cores-more-l2-cache-more-unified-memory/"
)
_M2_ULTRA = (
    "https://blog.patti.tech/2023/06/05/"
    "as-rumored-the-mac-studio-gets-an-m2-refresh-including-fused-together-m2-ultra"
)
_M3 = "https://www.tellforceblog.com/2023/10/apple-unveils-m3-m3-pro-and-m3-max-3nm-processors.html"
_PRO_MAX = "https://insiderllm.com/guides/apple-m5-pro-max-local-ai"
_M3_ULTRA = "https://techpowerup.com/news-tags/Mac%20Studio"
_M4 = "https://mactrast.com/?p=168123"
_M4_PRO_MAX = (
    "https://techmoran.com/2024/10/31/"
    "apple-unveils-its-most-powerful-chips-the-m4-pro-and-m4-max/?amp=1"
)
_M5 = (
    "https://aggregoctt.github.io/"
    "new-apple-m5-is-the-centerpiece-of-an-updated-14-i-ZjzAPBk0EfBff8iKVL3C7w"
)
_M5_ROOFLINE = "https://michaelstinkerings.org/apple-m5-gpu-roofline-analysis"
_ACCELERATORS = "https://tzakharko.github.io/apple-neural-accelerators-benchmark"


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


CHIPS = (
    Chip("M1", 13, 68.2, 8, 1.278, 16, _SOMAG + ", bandwidth: "
         "https://github.com/ggml-org/llama.cpp/pull/1642", f"listed: {_METAL_BENCHMARKS}"),
    Chip("M1 Pro", 13, 200, 16, 1.296, 32, _SOMAG, f"listed: {_METAL_BENCHMARKS}"),
    Chip("M1 Max", 13, 400, 32, 1.296, 64, _SOMAG, f"listed: {_METAL_BENCHMARKS}"),
    Chip("M1 Ultra", 13, 800, 64, 1.296, 128, _SOMAG + ", cores: " + _METAL_BENCHMARKS,
         f"listed: {_METAL_BENCHMARKS}"),
    Chip("M2", 14, 100, 10, 1.398, 24, _ABACHY, f"listed: {_METAL_BENCHMARKS}"),
    Chip("M2 Pro", 14, 200, 19, 1.398, 32, _M2_PRO_MAX,
         f"listed as a lower bound: {_METAL_BENCHMARKS}"),
    Chip("M2 Max", 14, 400, 38, 1.398, 96, _M2_PRO_MAX,
         f"listed as a lower bound: {_METAL_BENCHMARKS}"),
    Chip("M2 Ultra", 14, 800, 76, 1.398, 192, _M2_ULTRA,
         f"listed as a lower bound: {_METAL_BENCHMARKS}"),
    Chip("M3", 15, 100, 10, 1.398, 24, _ABACHY, "assumed to be that of M3 Pro and M3 Max"),
    Chip("M3 Pro", 15, 150, 18, 1.398, 36, _M3 + ", bandwidth: " + _PRO_MAX,
         f"listed: {_HMC}/apple-32-core-m4-max-vs-apple-18-core-m3-pro"),
    Chip("M3 Max", 15, 400, 40, 1.398, 128, _M3 + ", bandwidth: " + _PRO_MAX,
         f"listed: {_HMC}/apple-32-core-m4-max-vs-apple-40-core-m3-max"),
    Chip("M3 Ultra", 15, 819, 80, 1.398, 512, _M3_ULTRA, "assumed to be that of M3 Max, two of "
         "whose dies it has: https://www.xda-developers.com/apples-mac-studio-m3-ultra/"),
    Chip("M4", 16, 120, 10, 1.470, 32, _M4,
         f"listed: {_HMC}/apple-10-core-m4-fl-vs-apple-30-core-m3-max"),
    Chip("M4 Pro", 16, 273, 20, 1.470, 64, _M4_PRO_MAX,
         f"listed: {_HMC}/apple-20-core-m4-pro-vs-intel-hd-620-1000mhz"),
    Chip("M4 Max", 16, 546, 40, 1.678, 128, _M4_PRO_MAX,
         f"listed: {_HMC}/apple-32-core-m4-max-vs-apple-40-core-m3-max"),
    Chip("M5", 17, 153, 10, 1.578, 32, _M5, f"measured: {_M5_ROOFLINE}"),
    Chip("M5 Pro", 17, 307, 20, 1.750, 64, _PRO_MAX, "assumed to be that of M5 Max"),
    Chip("M5 Max", 17, 614, 40, 1.750, 128, _PRO_MAX, f"estimated: {_ACCELERATORS}"),
)  # fmt: skip


def chip(name: str) -> Chip:
    return next(c for c in CHIPS if c.name == name)
