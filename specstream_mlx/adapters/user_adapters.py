"""Adapters that users have added by name, in their cache; ``bundled`` has those of the package.

Names are looked up in a list of what is there, so none of them ever becomes a path.
"""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, shown
from ..files import read_json, staged_directory
from ..hardware import user_cache
from .description import ADAPTER_CONFIG, ADAPTER_FILES, describe

if TYPE_CHECKING:
    from .files import Adapter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> None:
    """Check that an adapter may have a name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"the adapter's name is {shown(name)}, expected letters, digits, '.', '_' and '-'"
        )


def user_adapters() -> dict[str, Path]:
    """Return the directories of the adapters that were added, by name."""
    folders = sorted(path.parent for path in _folder().glob(f"*/{ADAPTER_CONFIG}"))
    return {folder.name: folder for folder in folders if _NAME.fullmatch(folder.name)}


def add_adapter(name: str, adapter: "Adapter", base: str, replace: bool = False) -> Path:
    """Copy an adapter directory into the cache under a checked name; return the copy's path.

    The copy names its base, even if the directory does not.
    """
    if name in user_adapters() and not replace:
        raise UserError(f"there is an adapter {name!r} already, see --replace")
    target = _folder() / name
    with staged_directory(target, replace=replace) as scratch:
        for file in adapter.path.iterdir():
            if ADAPTER_FILES.fullmatch(file.name):
                shutil.copyfile(file, scratch / file.name)
        if not describe(scratch).base_model:
            config = read_json(scratch / ADAPTER_CONFIG) | {"model": base}
            (scratch / ADAPTER_CONFIG).write_text(json.dumps(config, indent=4) + "\n")
    return target


def remove_adapter(name: str) -> None:
    """Remove an adapter that was added."""
    added = user_adapters()
    if name not in added:
        names = ", ".join(added)
        expected = f"one of {names}" if names else "one that was added, of which are none"
        raise UserError(f"there is no adapter {shown(name)} to remove, expected {expected}")
    (added[name] / ADAPTER_CONFIG).unlink()  # from here on nobody finds it
    shutil.rmtree(added[name])


def _folder() -> Path:
    return user_cache.directory() / user_cache.ADAPTERS
