"""What differs by machine: the backend, its BLAS, and how weights are held."""

import os
import platform
import subprocess
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generation_stream, wired_limit
from mlx_lm.utils import dequantize_model

from .blas import BLAS

__all__ = [
    "backend",
    "describe",
    "generation_stream",
    "hold_weights",
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


def hold_weights(model: nn.Module) -> nn.Module:
    """Hold the weights as this backend runs them fastest.

    The CPU's ``quantized_matmul`` costs the same for every further row, so there the quantized
    values are expanded to float32 once (the quantized values stay the target); elsewhere the
    weights stay as they are.
    """
    if backend() != "cpu":
        return model
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


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
