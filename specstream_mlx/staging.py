"""Directories and files that appear complete or not at all: written elsewhere, then renamed."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from filelock import FileLock, Timeout

from .config import UserError

_FULL = 2**20
"""Bytes free on a disk that is taken for full."""
_PATIENCE = 60.0
"""Seconds to wait for another process that writes the same."""


@contextmanager
def staged_directory(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty directory beside ``target`` that takes its place when the block ends.

    If ``target`` is a link, its destination is meant. If the block raises or is interrupted,
    nothing is left and ``target`` stays as it was. What a killed process leaves is hidden, and
    removed by the next call for the same ``target``.

    Args:
        target: place of the directory; its parents are made.
        replace: whether a directory that is at ``target`` when the block ends is replaced.

    Raises:
        UserError: the file system refused something, within the block too, another process writes
            ``target``, or there is something at ``target`` that is not to be replaced.
    """
    with _scratch(target) as (scratch, place):
        yield scratch
        if place.exists() and (not replace or not place.is_dir()):
            raise _taken(target)
        replaced = _beside(place, "replaced")
        try:
            if place.exists():
                place.rename(replaced)
            scratch.rename(place)
        finally:
            _settle(replaced, place)


@contextmanager
def staged_file(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path; the file written there takes the place of ``target`` when the block ends.

    The path ends in ``target``'s name. See ``staged_directory``.

    Args:
        target: place of the file; its parents are made.
        replace: whether a file that is at ``target`` when the block ends is replaced.

    Raises:
        UserError: see ``staged_directory``; a directory or a device is never replaced.
    """
    with _scratch(target) as (scratch, place):
        if place.exists() and not place.is_file():
            raise UserError(f"{target} is a directory or a device, expected a file to replace")
        yield scratch / place.name
        if place.exists() and not replace:
            raise _taken(target)
        os.replace(scratch / place.name, place)


def append(path: Path, text: str) -> None:
    """Append text to a file, all of it or nothing.

    Raises:
        UserError: it cannot be written.
    """
    data = text.encode()
    try:
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(data) < len(data):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def other_file(directory: Path, expected: re.Pattern[str]) -> Path | None:
    """Find a file or link that would be lost if ``directory`` were replaced; ``None``: none.

    Args:
        directory: a directory.
        expected: pattern of the paths, relative to it, of files that may be lost.

    Returns:
        The path relative to ``directory``.
    """
    for parent, directories, files in os.walk(directory):
        directories.sort()
        links = [name for name in directories if (Path(parent) / name).is_symlink()]
        for name in sorted(files + links):
            path = (Path(parent) / name).relative_to(directory)
            # macOS leaves .DS_Store wherever somebody looked
            if name != ".DS_Store" and not expected.fullmatch(path.as_posix()):
                return path
    return None


def check_holds_only(directory: Path, expected: re.Pattern[str], whose: str) -> None:
    """Check that ``directory`` is not there, or may be replaced.

    Args:
        directory: a path.
        expected: see ``other_file``.
        whose: files these are, such as "an adapter's".

    Raises:
        UserError: it is a file, or holds another one.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file, expected {whose} directory to replace")
    if directory.exists() and (other := other_file(directory, expected)) is not None:
        raise UserError(f"{directory} holds {other}, expected only {whose} files to replace")


@contextmanager
def _scratch(target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a hidden empty directory, gone when the block ends, and what ``target`` points to."""
    place = Path(os.path.realpath(target))
    scratch = _beside(place, "partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, place):
            try:
                shutil.rmtree(scratch, ignore_errors=True)  # what a killed process has left
                _settle(_beside(place, "replaced"), place)
                scratch.mkdir()
                yield scratch, place
            except (OSError, UserError):
                raise
            except Exception as error:
                if (refused := _refused_write(error, scratch)) is not None:
                    raise refused from None
                raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None


@contextmanager
def _locked(target: Path, place: Path) -> Iterator[None]:
    """Keep other processes of this user from writing the same place."""
    locks = Path(tempfile.gettempdir()) / f"specstream-mlx-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    lock = FileLock(locks / sha256(os.fsencode(place)).hexdigest()[:24], timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{target} is being written by another process") from None
    try:
        yield
    finally:
        lock.release()


def _beside(place: Path, what: str) -> Path:
    return place.with_name(f".{place.name}.{what}")


def _settle(replaced: Path, target: Path) -> None:
    """Remove the directory that ``target`` replaced, or put it back if ``target`` never came."""
    if not replaced.exists():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)


def _refused_write(error: Exception, directory: Path) -> OSError | None:
    """Find out whether a library failed because it could not write, which MLX's errors do not say.

    Where the disk has room, a quota or a limit on the size of files may be in the way, so more is
    written to the largest file, which is about to be removed.
    """
    if "No space left" in str(error) or shutil.disk_usage(directory).free < _FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    files = [path for path in directory.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size, default=directory / "more")
    try:
        with largest.open("ab") as file:
            file.write(bytes(_FULL))
    except OSError as refused:
        return refused
    return None


def _taken(target: Path) -> UserError:
    return UserError(f"{target} exists already, expected a name that nothing else is written to")
