"""``python -m specstream_mlx``: the command line."""

from .cli import main

main()
