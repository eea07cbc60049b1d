"""Facts about the machine: backend, BLAS, memory, and the dtypes that are fast on it."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import mlx.core as mx

from .blas import BLAS


def backend() -> str:
    """Return where MLX runs by default: ``metal``, ``cuda`` or ``cpu``."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def compiles() -> bool:
    """Tell whether steps are compiled: on a GPU, which would wait for Python to build them.

    ``SPECSTREAM_COMPILE=1`` or ``0`` decides otherwise. For a CPU ``mx.compile`` needs a C++
    compiler, which takes a second for each of its kernels, and nothing waits there.
    """
    said = os.environ.get("SPECSTREAM_COMPILE", "")
    return said != "0" if said else backend() != "cpu"


def least_room() -> int:
    """Return the rows that the smallest KV buffers of compiled steps have."""
    # They attend to whole buffers, which a CPU feels and a GPU does not; a room is one more trace.
    return 64 if backend() == "cpu" else 256


def slow_blas() -> bool:
    """Tell whether MLX computes on the CPU with the slow reference BLAS."""
    return backend() == "cpu" and BLAS.startswith("reference")


def fast_dtype(dtype: mx.Dtype) -> mx.Dtype:
    """Return the dtype to compute in instead of ``dtype``: the CPU is fast in float32 alone."""
    return mx.float32 if backend() == "cpu" else dtype


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def processor() -> str:
    """Return the processor's name as the operating system gives it."""
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        with suppress(OSError):
            completed = subprocess.run(command, capture_output=True, text=True, check=False)
            return completed.stdout.strip()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def _cores() -> str:
    """Describe the machine's cores and, if they are fewer, the threads of its BLAS."""
    cores = threads = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        threads = len(os.sched_getaffinity(0))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # in OpenBLAS's order
        said = os.environ.get(name, "")
        if said.isdecimal() and int(said):
            threads = min(threads, int(said))
            break
    count = f"{cores} cores"
    return count if threads >= cores else f"{count}, {threads} for the BLAS"


def describe() -> dict[str, str]:
    """Collect facts for ``specstream-mlx doctor`` and for result tables."""
    cudnn = os.environ.get("MLX_CUDA_USE_CUDNN_SDPA") != "0"
    attention = {"attention": "cuDNN's" if cudnn else "MLX's own"} if backend() == "cuda" else {}
    tf32 = os.environ.get("MLX_ENABLE_TF32") != "0" and backend() != "cpu"
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": f"{processor()}, {_cores()}",
        "python": platform.python_version(),
        "mlx": mx.__version__,  # type: ignore[attr-defined]  # its stubs leave it out
        "backend": backend(),
        "blas": BLAS if backend() == "cpu" else "not used",
        **attention,
        **({"float32": "in TF32 where the GPU has it (MLX_ENABLE_TF32)"} if tf32 else {}),
    }
