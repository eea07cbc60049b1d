"""What differs by machine: the BLAS behind MLX's CPU backend, and how weights are held.

Importing this module on Linux loads OpenBLAS, if it is installed, before ``mlx.core`` binds to
the slower reference BLAS of its own wheel. It therefore has to be imported before ``mlx.core``;
``specstream_mlx/__init__.py`` does so.
"""

import ctypes
import ctypes.util
import platform
import sys

OPENBLAS_HINT = (
    "MLX is using its reference BLAS, which is several times slower: "
    "install OpenBLAS (Debian, Ubuntu: apt-get install libopenblas0)"
)


def _preload_openblas() -> str:
    """Make OpenBLAS's symbols win over the reference BLAS; returns which BLAS MLX will use."""
    if sys.platform != "linux":
        return "Accelerate" if sys.platform == "darwin" else "default"
    if "mlx.core" in sys.modules:
        return "reference (MLX was imported before specstream_mlx)"
    name = ctypes.util.find_library("openblas")
    if name is None:
        return "reference"
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return "reference"
    return f"OpenBLAS ({name})"


BLAS = _preload_openblas()

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from mlx_lm.generate import generation_stream, wired_limit  # noqa: E402
from mlx_lm.utils import dequantize_model  # noqa: E402

__all__ = [
    "BLAS",
    "OPENBLAS_HINT",
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


def describe() -> dict[str, str]:
    """Facts for ``specstream-mlx doctor`` and for result tables."""
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mlx": mx.__version__,
        "backend": backend(),
        "blas": BLAS if backend() == "cpu" else "not used",
    }
