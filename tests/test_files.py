"""Directories and files that appear complete or not at all, whatever happens meanwhile."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import safetensors.numpy
import torch
from tiny_models import tiny_tokenizer

from specstream_mlx import files
from specstream_mlx.errors import UserError, shown
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


@pytest.fixture
def limit():
    """Sets the most bytes that a file may have, as ``ulimit -f`` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield set_limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _by_mlx(path):
    mx.save_safetensors(str(path.with_suffix(".safetensors")), {"a": mx.zeros(4096)})


def _by_safetensors(path):
    safetensors.numpy.save_file({"a": np.zeros(4096)}, path)


def _by_torch(path):
    torch.save(torch.zeros(4096), path)


def _by_tokenizers(path):
    tiny_tokenizer().backend_tokenizer.save(str(path))


def _by_python(path):
    path.write_text("a" * 9999)


@pytest.mark.parametrize("write", [_by_mlx, _by_safetensors, _by_torch, _by_tokenizers, _by_python])
@pytest.mark.parametrize("size", [0, 3000])
def test_a_limit_on_the_size_of_files_is_one_sentence(write, size, limit, tmp_path):
    """The disk has room, and most libraries' errors do not say what is in the way."""
    for staged, target in ((staged_file, "file"), (staged_directory, "directory")):
        with pytest.raises(UserError) as caught, staged(tmp_path / target) as scratch:
            limit(size)
            write(scratch if scratch.name == "file" else scratch / "x")
        assert str(caught.value) == f"{tmp_path / target} cannot be written: File too large"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EFBIG, errno.EROFS])
def test_what_the_system_refuses_is_said_in_its_words(number, tmp_path, monkeypatch):
    """As a quota does, which no test can set: a library fails, and so does what is written then."""
    real = files._refused_write

    def refused(error, scratch):
        monkeypatch.setattr("pathlib.Path.open", lambda *_, **__: (_ for _ in ()).throw(system))
        return real(error, scratch)

    system = OSError(number, os.strerror(number))
    monkeypatch.setattr(files, "_refused_write", refused)
    sentence = f"file cannot be written: {os.strerror(number)}$"
    with pytest.raises(UserError, match=sentence), staged_file(tmp_path / "file"):
        raise RuntimeError("[write] Unable to write 3 bytes to file.")
    assert not list(tmp_path.iterdir())


def test_a_library_that_cannot_write_for_another_reason(tmp_path):
    message, sentence = "[MIL FileWriter]: Unknown error", "cannot be written: a library says"
    with pytest.raises(UserError, match=sentence), staged_file(tmp_path / "file"):
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="another"), staged_file(tmp_path / "file"):
        raise RuntimeError("another")


def test_nothing_is_written_to_a_link_to_itself(tmp_path):
    (loop := tmp_path / "loop").symlink_to("loop")
    for target in (loop, loop / "below"):
        for staged in (staged_file, staged_directory):
            with pytest.raises(UserError, match="cannot be written: "), staged(target):
                pass
    assert loop.is_symlink()


WORDS = {
    "TypeError": lambda: None + 1,
    "AttributeError": lambda: (3).nothing,
    "an argument": lambda: mx.ones(()).astype(dtype=mx.float32, nosuch=1),
    "mlx": lambda: mx.random.uniform(shape="x"),
    "not iterable": lambda: list(3),
    "address": lambda: (_ for _ in ()).throw(ValueError("<X object at 0x7f0123456789>")),
}


@pytest.mark.parametrize("case", WORDS)
def test_no_sentence_has_pythons_own_words(case):
    with pytest.raises(Exception) as caught:
        WORDS[case]()
    assert files.reason(caught.value) == "a value in it is of another kind than is expected there"


def test_reasons_and_values_in_words():
    assert files.reason(KeyError("base")) == "it lacks 'base'"
    assert files.reason(ValueError()) == "it gives no reason"
    assert files.reason(ValueError("[load] Unknown type x. Do y")) == "Unknown type x"
    kinds = {"null": None, "a list": [], "an object": {}, "a text": "", "true or false": True}
    assert all(files.json_kind(value) == words for words, value in kinds.items())
    assert files.json_kind(3) == files.json_kind(0.5) == "a number"
    assert shown(object()) == "a object" and shown([print, mx.array]).count("0x") == 0
    assert len(str(UserError("a " + "x" * 5000))) < 420
