"""The packages that training needs, which the extra ``torch`` installs."""

import sys
from importlib import import_module


def import_or_exit() -> None:
    """Import them for a program; where one is missing, say so in a line and exit with 2."""
    try:
        for name in ("torch", "transformers", "peft"):
            import_module(name)
    except ModuleNotFoundError as error:
        print(
            f"error: training needs {error.name}: pip install 'specstream-mlx[torch]'",
            file=sys.stderr,
        )
        sys.exit(2)
