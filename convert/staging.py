"""Directories that appear whole or not at all."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specstream_mlx.config import UserError


@contextmanager
def staged_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside ``target`` that takes its place when the block ends.

    What stood at ``target`` before is replaced; where that is a link, what it points to. If the
    block raises, or is interrupted, nothing is left behind and ``target`` stays as it was. A
    process that is killed leaves its unfinished directory, hidden and under another name; the next
    one for the same ``target`` removes it.

    Raises:
        UserError: the file system refused something, in the block too.
    """
    place = Path(os.path.realpath(target))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(place)
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=place.parent))
        with _locked(scratch):
            try:
                yield scratch
                scratch.chmod(0o755)
                _put_in_place(scratch, place)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None


def _put_in_place(scratch: Path, target: Path) -> None:
    """Rename ``scratch`` to ``target``, and remove what stood there."""
    if not target.exists():
        scratch.rename(target)
        return
    replaced = scratch.with_name(scratch.name.replace(".partial-", ".replaced-"))
    with _locked(target):  # under its new name too, so that no other process puts it back
        try:
            target.rename(replaced)
            scratch.rename(target)
        finally:
            _settle(replaced, target)


def _settle(replaced: Path, target: Path) -> None:
    """Remove what ``target`` has replaced, or put it back where nothing has come in its place."""
    if not replaced.exists():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Hold a lock on a directory that the system drops when this process ends, however it ends.

    Yields:
        Whether the lock was free; also ``False`` where the file system knows no locks.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        free = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def _clear_leftovers(target: Path) -> None:
    """Remove or put back the directories of killed processes, leave those of running ones."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"(partial|replaced)-[a-z0-9_]{8}")
    for path in target.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(FileNotFoundError), _locked(path) as free:
            if not free:
                continue
            if match[1] == "replaced":
                _settle(path, target)
            else:
                shutil.rmtree(path)
