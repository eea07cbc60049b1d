"""Directories and files that appear complete or not at all: written elsewhere, then renamed."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from .config import UserError

_FULL = 2**20
"""Bytes free on a disk that is taken for full."""


@contextmanager
def staged_directory(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty directory beside ``target`` that takes its place when the block ends.

    If ``target`` is a link, its destination is meant. If the block raises or is interrupted,
    nothing is left behind and ``target`` stays as it was. A process that is killed leaves its
    unfinished directory, hidden and under another name; the next call for the same ``target``
    removes it.

    Args:
        target: place of the directory; its parents are made.
        replace: whether a directory that is at ``target`` when the block ends is replaced.

    Raises:
        UserError: the file system refused something, within the block too, or there is something
            at ``target`` that is not to be replaced.
    """
    with _HeldSignals() as signals, _scratch(target) as (scratch, place):
        with signals.let_through():
            yield scratch
        scratch.chmod(0o755)
        try:
            if replace and place.exists():
                _exchange(scratch, place)
            else:
                scratch.rename(place)  # which replaces an empty directory at most
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise _taken(target) from None
            raise


@contextmanager
def staged_file(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path; the file written there takes the place of ``target`` when the block ends.

    The path ends in ``target``'s name. See ``staged_directory``.

    Args:
        target: place of the file; its parents are made.
        replace: whether a file that is at ``target`` when the block ends is replaced.

    Raises:
        UserError: the file system refused something, within the block too, or there is something
            at ``target`` that is not to be replaced: a directory or a device never is.
    """
    with _HeldSignals() as signals, _scratch(target) as (scratch, place):
        if place.exists() and not place.is_file():
            raise UserError(f"{target} is a directory or a device, expected a file to replace")
        with signals.let_through():
            yield scratch / place.name
        if not replace and not _linked(scratch / place.name, place):
            raise _taken(target)
        (scratch / place.name).replace(place)


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


class _HeldSignals:
    """A delay of SIGINT and SIGTERM while directories are made, renamed and removed.

    An exception of a signal's handler in the midst of that would leave a directory behind.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> "_HeldSignals":
        self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """A context in which signals have their handlers; those that came before it come now."""
        try:
            self._release()
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            return
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._handlers[number] = signal.getsignal(number)
                    signal.signal(number, self._note)
        except BaseException:  # the handler of one that comes just now
            self._restore()
            raise

    def _note(self, number: int, _: FrameType | None) -> None:
        self._came.append(number)

    def _restore(self) -> None:
        try:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        except BaseException:  # a handler that is back already has raised; the others are to be
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            raise

    def _release(self) -> None:
        self._restore()
        came, self._came = self._came, []
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _scratch(target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a hidden empty directory, gone when the block ends, and what ``target`` points to."""
    place = Path(os.path.realpath(target))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(place)
        with _new_directory(place) as scratch:
            try:
                yield scratch, place
            except Exception as error:
                if isinstance(error, OSError | UserError):
                    raise
                if (refused := _refused_write(error, scratch)) is not None:
                    raise refused from None
                raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None


def _refused_write(error: Exception, directory: Path) -> OSError | None:
    """Find out whether a library failed because it could not write: MLX's, torch's and coremltools'
    errors do not say it.

    Where the disk has room, a quota or a limit on the size of files may be in the way, so more is
    written behind the largest file, which is about to be removed.
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


def _linked(file: Path, target: Path) -> bool:
    """Give a file the name ``target`` too; whether nothing else had it."""
    try:
        os.link(file, target)
    except FileExistsError:
        return False
    except OSError:  # the file system has no links
        return not target.exists()
    return True


def _taken(target: Path) -> UserError:
    return UserError(f"{target} exists already, expected a name that nothing else is written to")


@contextmanager
def _new_directory(place: Path) -> Iterator[Path]:
    """Make a directory beside ``place`` and lock it.

    Another process may take it for a leftover before it is locked; then another one is made.
    """
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=place.parent))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(scratch, os.O_RDONLY)
            if _lock(descriptor) is not False and scratch.exists():
                break
            os.close(descriptor)
    try:
        yield scratch
    finally:
        os.close(descriptor)


def _exchange(scratch: Path, target: Path) -> None:
    """Rename ``scratch`` to ``target``, and remove the directory that stood there."""
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
    """Lock a directory; yields whether the lock was free."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield _lock(descriptor) is True
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock an open directory; the system drops the lock when it is closed or the process ends.

    Returns:
        Whether the lock was free; ``None`` where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


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
