"""Adapters that users keep by name, in their cache; ``bundled`` has those of the package.

Names are looked up in a list of what is there, so none of them ever becomes a path.
"""

import re
import shutil
from pathlib import Path

from ..errors import UserError, shown
from ..files import staged_directory
from ..hardware import user_cache
from .description import ADAPTER_CONFIG, ADAPTER_FILES
from .files import Adapter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> None:
    """Check that an adapter may have a name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"the adapter's name is {shown(name)}, expected letters, digits, '.', '_' and '-'"
        )


def kept_adapters() -> dict[str, Path]:
    """Return the directories of the adapters that are kept, by name."""
    found = _folder().glob(f"*/{ADAPTER_CONFIG}")
    named = {path.parent.name: path.parent for path in found}
    return {name: named[name] for name in sorted(named) if _NAME.fullmatch(name)}


def keep_adapter(name: str, adapter: Adapter, replace: bool = False) -> Path:
    """Copy an adapter directory to where it is found by name; return the place."""
    check_name(name)
    if name in kept_adapters() and not replace:
        raise UserError(f"there is an adapter {name!r} already, see --replace")
    target = _folder() / name
    with staged_directory(target, replace=replace) as scratch:
        for file in adapter.path.iterdir():
            if ADAPTER_FILES.fullmatch(file.name):
                shutil.copyfile(file, scratch / file.name)
    return target


def drop_adapter(name: str) -> None:
    """Remove an adapter that is kept."""
    kept = kept_adapters()
    if name not in kept:
        expected = f"one of {', '.join(kept)}" if kept else "one that was added, of which are none"
        raise UserError(f"there is no adapter {shown(name)} to remove, expected {expected}")
    (kept[name] / ADAPTER_CONFIG).unlink()  # from here on nobody finds it
    shutil.rmtree(kept[name])


def _folder() -> Path:
    return user_cache.directory() / "adapters"
