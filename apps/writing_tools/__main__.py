"""``python -m apps.writing_tools``: ``specstream-mlx writing-tools`` in a clone."""

import sys

from specstream_mlx.cli import main

sys.argv[1:1] = ["writing-tools"]
main()
