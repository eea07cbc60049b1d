"""The user's cache directory, and measurements of this machine stored there as JSON files."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from ..files import read_json, staged_file

Value = TypeVar("Value")

ADAPTERS, SERVERS = "adapters", "servers"
"""Folders of the adapters that users have added, and of the addresses of running servers."""


def directory() -> Path:
    """Return the cache directory: ``specstream-mlx`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specstream-mlx"


def read(path: Path) -> dict[str, Any]:
    """Read the JSON object in ``path``; empty if the file is missing or damaged."""
    try:
        return read_json(path)
    except UserError:
        return {}


def write(path: Path, values: dict[str, Any]) -> None:
    """Write ``values`` completely or not at all; ignores failures: they can be measured again."""
    with suppress(UserError), staged_file(path) as scratch:
        scratch.write_text(json.dumps(values, indent=2) + "\n")


def measured(
    path: Path,
    key: str,
    measure: Callable[[], Any],
    restore: Callable[[Any], Value],
    again: bool = False,
) -> Value:
    """Look up ``key`` in the file ``path``, or measure the value and store it there."""
    known = read(path)
    if not again:  # a damaged value is measured again
        with suppress(KeyError, TypeError, ValueError):
            return restore(known[key])
    value = measure()
    write(path, known | {key: value})
    return restore(value)


def sizes() -> dict[str, int]:
    """The bytes of what can be made again, by name: all except added adapters and servers."""
    return {
        path.name: sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
        for path in sorted(directory().glob("*"))
        if path.name not in (ADAPTERS, SERVERS)
    }


def clear() -> None:
    """Remove what ``sizes`` lists."""
    for name in sizes():
        path = directory() / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
