"""How MLX multiplies: what must be settled before ``mlx.core`` is first imported.

``specstream_mlx/__init__.py`` therefore imports this module before all else.
"""

import ctypes
import os
import sys

# On M5, as on NVIDIA's GPUs, MLX would compute products of two and more rows of float32 in TF32,
# which keeps 10 bits of the fraction, and those of one row in float32: drafts would change texts.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

# On CUDA, MLX lets cuDNN plan attention of several rows anew for every number of keys, which takes
# some 50 ms on an H100, and drafting changes that number in every step. MLX reads this at the
# process's first attention; what it costs long prompts has not been measured.
os.environ.setdefault("MLX_CUDA_USE_CUDNN_SDPA", "0")

OPENBLAS_HINT = (
    "MLX is using its reference BLAS, which is several times slower: "
    "install OpenBLAS (Debian, Ubuntu: apt-get install libopenblas0)"
)


def _preload_openblas() -> str:
    """Make OpenBLAS's symbols win; returns the name of the BLAS that MLX's CPU backend uses.

    The ``mlx-cpu`` wheel links the reference BLAS; symbols that are loaded before it win.
    """
    if sys.platform != "linux":
        return "Accelerate" if sys.platform == "darwin" else "default"
    if "mlx.core" in sys.modules:
        return "reference (mlx.core was imported before specstream_mlx)"
    name: str | None = "libopenblas.so.0"  # its usual name; to look for another one takes longer
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        from ctypes.util import find_library

        name = find_library("openblas")
        if name is None:
            return "reference"
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            return "reference"
    return f"OpenBLAS ({name})"


BLAS = _preload_openblas()
