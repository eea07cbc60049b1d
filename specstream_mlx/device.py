"""What differs by machine: the backend, its BLAS, its memory and its fast dtypes."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generation_stream, wired_limit

from .blas import BLAS

__all__ = [
    "backend",
    "describe",
    "fast_dtype",
    "generation_stream",
    "memory_bytes",
    "slow_blas",
    "wired_limit",
]


def backend() -> str:
    """``metal``, ``cuda`` or ``cpu``: where MLX runs by default."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def slow_blas() -> bool:
    """Whether products run on the CPU with the reference BLAS."""
    return backend() == "cpu" and BLAS.startswith("reference")


def fast_dtype(dtype: mx.Dtype) -> mx.Dtype:
    """The dtype to compute in instead of ``dtype``: the CPU is fast in float32 alone."""
    return mx.float32 if backend() == "cpu" else dtype


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def _cpu_name() -> str:
    """The processor's name as the operating system gives it."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def describe() -> dict[str, str]:
    """Facts for ``specstream-mlx doctor`` and for result tables."""
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu_name()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "mlx": mx.__version__,
        "backend": backend(),
        "blas": BLAS if backend() == "cpu" else "not used",
    }
