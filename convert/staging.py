"""Directories and files that appear complete or not at all: written elsewhere, then renamed."""

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
    """Yield an empty directory beside ``target`` that takes its place when the block ends.

    A directory at ``target`` is replaced; if ``target`` is a link, the directory that it points to.
    If the block raises or is interrupted, nothing is left behind and ``target`` stays as it was. A
    process that is killed leaves its unfinished directory, hidden and under another name; the next
    call for the same ``target`` removes it.

    Raises:
        UserError: the file system refused something, within the block too.
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


@contextmanager
def staged_file(target: Path) -> Iterator[Path]:
    """Yield a path beside ``target``; the file written there takes its place when the block ends.

    If the block raises or is interrupted, ``target`` stays as it was.

    Raises:
        UserError: the file cannot be renamed.
    """
    scratch = target.with_name(f".{target.name}.partial")
    try:
        yield scratch
        try:
            scratch.replace(target)
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        scratch.unlink(missing_ok=True)


def _put_in_place(scratch: Path, target: Path) -> None:
    """Rename ``scratch`` to ``target``, and remove the directory that stood there."""
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
    """Remove the directory that ``target`` replaced, or put it back if ``target`` never came."""
    if not replaced.exists():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Lock a directory; the system drops the lock when this process ends, however it ends.

    Yields:
        Whether the lock was free; ``False`` too where the file system has no locks.
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
    """Remove or put back the directories that killed processes left beside ``target``."""
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
