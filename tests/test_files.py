"""Directories and files that appear complete or not at all, whatever happens meanwhile."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from specstream_mlx import files
from specstream_mlx.errors import UserError
from specstream_mlx.files import staged_directory, staged_file

BOTH = ((staged_directory, "model"), (staged_file, "file"))
STOPS_HALFWAY = """
import sys
import time
from pathlib import Path
from specstream_mlx.terminal.errors import reported
from specstream_mlx.files import staged_directory

with reported(), staged_directory(Path(sys.argv[1])) as scratch:
    (scratch / "half").touch()
    print("halfway", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("stop", "code", "replaces"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, True), (signal.SIGKILL, -9, True)],
)
def test_a_stopped_process_leaves_the_target_as_it_was(replaces, stop, code, tmp_path):
    """What a killed one has left beside it is cleared by the next."""
    target = tmp_path / "out" / "model"
    if replaces:
        target.mkdir(parents=True)
        (target / "mine.txt").write_text("mine")
    command = [sys.executable, "-c", STOPS_HALFWAY, str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"halfway\n"
    process.send_signal(stop)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert target.exists() == replaces
    assert len(list(target.parent.iterdir())) == replaces + (stop == signal.SIGKILL)
    assert not replaces or [path.name for path in target.iterdir()] == ["mine.txt"]
    with staged_directory(target) as scratch:
        (scratch / "new").touch()
    assert [path.name for path in target.parent.rglob("*")] == ["model", "new"]


def test_nothing_is_replaced_unless_asked_for(tmp_path):
    """What comes while the block runs is kept too, and the sentence names it."""
    for staged, name in ((staged_directory, "model/weights"), (staged_file, "file")):
        target = tmp_path / name.split("/")[0]
        with (
            pytest.raises(UserError, match=f"^{target} exists already"),
            staged(target, replace=False) as scratch,
        ):
            (scratch / "weights" if staged is staged_directory else scratch).write_text("new")
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("mine")
        assert (tmp_path / name).read_text() == "mine"
    with staged_file(tmp_path / "second", replace=False) as scratch:
        scratch.write_text("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model", "second"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for text in ("first", "second"):
        with staged_file(tmp_path / "link") as scratch:
            scratch.write_text(text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_text() == text
    with pytest.raises(UserError, match="is a directory or a device"), staged_file(tmp_path):
        pass


@pytest.mark.parametrize(
    ("error", "free"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2**30),
        (RuntimeError("[write] Unable to write 334556 bytes to file."), 0),  # MLX's
        (ValueError("I/O error: No space left on device (os error 28)"), 2**30),  # safetensors'
    ],
)
def test_a_full_disk_is_one_sentence(error, free, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    for staged, name in BOTH:
        sentence = f"^{tmp_path / name} cannot be written: No space left on device$"
        with pytest.raises(UserError, match=sentence), staged(tmp_path / name):
            raise error
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_two_do_not_write_one_target(tmp_path, monkeypatch):
    """The second is refused after a while, and changes nothing of the first."""
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    for staged, name in BOTH:
        with staged(tmp_path / name) as scratch:
            (scratch / "new" if staged is staged_directory else scratch).touch()
            with (
                pytest.raises(UserError, match=f"^{tmp_path / name} is being written by another"),
                staged(tmp_path / name),
            ):
                pass
    assert {path.name for path in tmp_path.rglob("*")} == {"model", "new", "file"}


def test_what_was_replaced_comes_back_after_a_kill_in_between(tmp_path):
    """As if the process had been killed between its last two renames."""
    (tmp_path / ".model.replaced").mkdir()
    (tmp_path / ".model.replaced" / "mine.txt").write_text("mine")
    with pytest.raises(KeyError), staged_directory(tmp_path / "model"):
        raise KeyError
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"
