"""Benchmarks: one command each, results in ``benchmarks/results``.

OpenBLAS must be loaded before ``mlx.core``, so importing any of them imports the package first.
"""

import specstream_mlx  # noqa: F401
