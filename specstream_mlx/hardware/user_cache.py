"""What was measured on this machine, kept in the user's cache as JSON files."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")


def directory() -> Path:
    """``$XDG_CACHE_HOME`` or ``~/.cache``, then ``specstream-mlx``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specstream-mlx"


def read(path: Path) -> dict[str, Any]:
    """The object in ``path``; empty where there is none, or a damaged one."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def write(path: Path, values: dict[str, Any]) -> None:
    """Write ``values``, whole or not at all; what cannot be written is measured again next time."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(values, indent=2) + "\n")
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def measured(
    path: Path,
    key: str,
    measure: Callable[[], Any],
    restore: Callable[[Any], Value],
    again: bool = False,
) -> Value:
    """What ``path`` holds under ``key``, else measured and kept there.

    Args:
        path: of a file with several keys.
        key: names all that the measurement depends on.
        measure: returns what JSON can hold.
        restore: makes a value of that; KeyError, TypeError and ValueError mean that it is damaged.
        again: what is in the file does not count.
    """
    known = read(path)
    if not again:
        with suppress(KeyError, TypeError, ValueError):
            return restore(known[key])
    found = measure()
    write(path, known | {key: found})
    return restore(found)
