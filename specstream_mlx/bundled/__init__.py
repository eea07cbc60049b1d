"""Where the bundled demonstration model lies inside the installed package.

``base/`` is the model in MLX format, ``streams/`` its lossless streams, and ``adapters/<name>/``
one shared-mode adapter per task; the last two are adapter directories.
"""

from pathlib import Path

from ..config import UserError, shown

ROOT = Path(__file__).parent


def base_path() -> Path:
    """The base model's directory.

    Raises:
        UserError: this installation has no bundled model.
    """
    return _existing(ROOT / "base", "config.json")


def streams_path() -> Path:
    """The adapter directory with the base's lossless streams.

    Raises:
        UserError: this installation has no bundled model.
    """
    return _existing(ROOT / "streams", "adapter_config.json")


def adapter_names() -> list[str]:
    """Names of the bundled adapters; empty where this installation has none."""
    return sorted(path.parent.name for path in ROOT.glob("adapters/*/adapter_config.json"))


def adapter_path(name: str) -> Path:
    """The directory of the bundled adapter ``name``.

    Raises:
        UserError: there is no such adapter.
    """
    names = adapter_names()
    if not names:
        _existing(ROOT / "adapters", "*/adapter_config.json")
    if name not in names:
        expected = ", ".join(names)
        raise UserError(f"there is no bundled adapter {shown(name)}, expected one of {expected}")
    return ROOT / "adapters" / name


def _existing(directory: Path, marker: str) -> Path:
    if not any(directory.glob(marker)):
        raise UserError(
            f"the bundled model is missing from this installation ({directory} has no {marker}); "
            "--model takes any model in MLX format"
        )
    return directory
