"""Directories that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside ``target`` that takes its place when the block ends.

    What stood at ``target`` before is replaced. If the block raises, or is interrupted, nothing is
    left behind and ``target`` stays as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        if target.exists():
            old = scratch.with_name(scratch.name + "-old")
            target.rename(old)
            scratch.rename(target)
            shutil.rmtree(old)
        else:
            scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
