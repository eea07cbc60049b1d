"""Imported before every test module."""

import specstream_mlx  # noqa: F401  (loads OpenBLAS, which must come before mlx.core)
