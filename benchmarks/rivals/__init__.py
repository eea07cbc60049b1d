"""Other methods of drafting, one file each, and ``python -m benchmarks.rivals``, which compares."""
