"""What ``--overwrite`` may replace: models and adapters, but none that the conversion reads."""

import os
from collections.abc import Sequence
from pathlib import Path

from specstream_mlx.adapters.description import LORA_FILE
from specstream_mlx.adapters.torch_files import LORA_CONFIG, STREAM_CONFIG
from specstream_mlx.config import UserError


def check_replaceable(target: Path, model: Path, adapters: Sequence[Path] = ()) -> None:
    """Check that a conversion may write to ``target`` and remove what is there.

    It may if there is nothing, an empty directory, a model, an adapter, or a directory of adapters
    as ``convert_adapters`` writes it.

    Args:
        target: directory for the result; need not exist.
        model: directory of the base that is read.
        adapters: directories of the adapters that are read.

    Raises:
        UserError: something else is at ``target``, or replacing it would remove a directory that
            is read or the current directory.
    """
    place = _resolved(target)
    kept = [("the model", model), *(("the adapter", adapter) for adapter in adapters)]
    for what, path in (*kept, ("the current directory", Path.cwd())):
        found = _resolved(path)
        if place == found or place in found.parents:
            verb = "is" if place == found else "holds"
            raise UserError(f"{target} {verb} {what} {path}, expected another --mlx-path")
    if not place.exists():
        return
    if not place.is_dir():
        raise UserError(f"{target} is a file, expected a directory to replace")
    if not _is_model(place) and not _is_adapter(place) and not _holds_only_adapters(place):
        raise UserError(
            f"{target} holds other files than a model's or an adapter's, expected another "
            "--mlx-path, since --overwrite would remove them"
        )


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_model(directory: Path) -> bool:
    weights = directory.glob("*.safetensors")
    return (directory / "config.json").is_file() and any(weights)


def _is_adapter(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (LORA_CONFIG, STREAM_CONFIG))


def _holds_only_adapters(directory: Path) -> bool:
    """Whether the directory holds adapters in MLX format and nothing else, or nothing at all."""
    return all(
        (path / LORA_CONFIG).is_file() and (path / LORA_FILE).is_file()
        for path in directory.iterdir()
        if path.name != ".DS_Store"  # macOS leaves it wherever somebody looked
    )
