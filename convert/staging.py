"""Directories that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specstream_mlx.config import UserError


@contextmanager
def staged_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside ``target`` that takes its place when the block ends.

    What stood at ``target`` before is replaced. If the block raises, or is interrupted, nothing is
    left behind and ``target`` stays as it was.

    Raises:
        UserError: there can be no directory beside ``target``.
    """
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from None
    try:
        yield scratch
        scratch.chmod(0o755)
        _move(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _move(scratch: Path, target: Path) -> None:
    """Put ``scratch`` where ``target`` is; what is there comes back if that fails."""
    if not target.exists():
        scratch.rename(target)
        return
    old = scratch.with_name(f"{scratch.name}-old")
    target.rename(old)
    try:
        scratch.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def check_replaceable(target: Path, marker: str, overwrite: bool) -> None:
    """Raise ``UserError`` if there is something at ``target`` that must stay.

    Args:
        target: where a conversion is to go.
        marker: a file that every such conversion holds; only a directory with it is replaced.
        overwrite: whether it may be.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"the output {target} exists and is a file, expected a new directory")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise UserError(
            f"the output directory {target} exists already, expected a new one or --overwrite"
        )
    if not (target / marker).is_file():
        raise UserError(
            f"the output directory {target} is not overwritten: it has no {marker}, "
            "so it does not look like an earlier conversion"
        )
