"""``python -m benchmarks.rivals``."""

from specstream_mlx.terminal.commands import program

from .compare import main

program(main)()
