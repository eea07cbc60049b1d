"""Loading of OpenBLAS on Linux, so that MLX's CPU backend uses it.

The ``mlx-cpu`` wheel links the reference BLAS; symbols that are loaded before ``mlx.core`` is
first imported win. ``specstream_mlx/__init__.py`` therefore imports this module before all else.
"""

import ctypes
import sys

OPENBLAS_HINT = (
    "MLX is using its reference BLAS, which is several times slower: "
    "install OpenBLAS (Debian, Ubuntu: apt-get install libopenblas0)"
)


def _preload_openblas() -> str:
    """Make OpenBLAS's symbols win; returns the name of the BLAS that MLX's CPU backend uses."""
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
