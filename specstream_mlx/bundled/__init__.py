"""The streams and adapters that come with the package; see ``demonstration`` for their base.

``streams/`` holds the lossless streams of the base, and ``adapters/<name>/`` the adapter
of each task, LoRA with streams; all are adapter directories.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, shown
from ..files import read_json
from ..models.fingerprint import fingerprint

ROOT = Path(__file__).parent


def streams_path() -> Path:
    """Return the adapter directory with the base's lossless streams."""
    return _existing(ROOT / "streams")


def streams_for(config: Mapping[str, Any]) -> Path | None:
    """Return the lossless streams' directory if they fit a base's ``config.json``."""
    path = ROOT / "streams"
    if not (path / _CONFIG).exists():
        return None
    trained_for = read_json(path / _CONFIG)["speculative_streaming"]["base_fingerprint"]
    return path if trained_for == fingerprint(config) else None


def adapter_names() -> list[str]:
    """List the names of the adapters; empty if this installation has none."""
    return sorted(path.parent.name for path in ROOT.glob(f"adapters/*/{_CONFIG}"))


def adapter_path(name: str) -> Path:
    """Return the directory of the adapter ``name``."""
    names = adapter_names()
    if not names:
        _existing(ROOT / "adapters" / name)
    if name not in names:
        expected = ", ".join(names)
        raise UserError(f"there is no bundled adapter {shown(name)}, expected one of {expected}")
    return ROOT / "adapters" / name


_CONFIG = "adapter_config.json"


def _existing(directory: Path) -> Path:
    if not (directory / _CONFIG).exists():
        raise UserError(
            f"the bundled streams and adapters are missing from this installation ({directory} has "
            f"no {_CONFIG}); --adapter-path takes any adapter directory"
        )
    return directory
