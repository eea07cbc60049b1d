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


@contextmanager
def staged_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside ``target`` that takes its place when the block ends.

    What stood at ``target`` before is replaced. If the block raises, or is interrupted, nothing is
    left behind and ``target`` stays as it was. A process that is killed leaves its unfinished
    directory, hidden and under another name; the next one for the same ``target`` removes it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(target)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    replaced = scratch.with_name(scratch.name.replace(".partial-", ".replaced-"))
    with _locked(scratch):
        try:
            yield scratch
            scratch.chmod(0o755)
            if target.exists():
                target.rename(replaced)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
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
    """Remove the unfinished directories of killed processes, leave those of running ones."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"(partial|replaced)-[a-z0-9_]{8}")
    for path in target.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        if match[1] == "replaced":
            _settle(path, target)
            continue
        with contextlib.suppress(FileNotFoundError), _locked(path) as free:
            if free:
                shutil.rmtree(path)
