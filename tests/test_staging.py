"""Directories and files that appear complete or not at all, whatever happens meanwhile."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specstream_mlx.staging import staged_directory, staged_file

_STOPS_HALFWAY = """
import sys, time
from pathlib import Path
from specstream_mlx.staging import staged_directory

with staged_directory(Path(sys.argv[1])) as scratch:
    (scratch / "half").touch()
    print("halfway", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_stopped_process_leaves_the_target_as_it_was(replaces, stop, tmp_path):
    """What a killed one has left beside it is cleared by the next."""
    target = tmp_path / "out" / "model"
    if replaces:
        target.mkdir(parents=True)
        (target / "mine.txt").write_text("mine")
    command = [sys.executable, "-c", _STOPS_HALFWAY, str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"halfway\n"
    process.send_signal(stop)
    process.communicate(timeout=60)
    assert target.exists() == replaces
    assert len(list(target.parent.iterdir())) == replaces + (stop == signal.SIGKILL)
    assert not replaces or [path.name for path in target.iterdir()] == ["mine.txt"]
    with staged_directory(target) as scratch:
        (scratch / "new").touch()
    assert [path.name for path in target.parent.rglob("*")] == ["model", "new"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_block_leaves_nothing_behind(error, tmp_path):
    with pytest.raises(error), staged_directory(tmp_path / "model") as scratch:
        (scratch / "half").touch()
        raise error
    with pytest.raises(error), staged_file(tmp_path / "file") as scratch:
        scratch.touch()
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_file_takes_the_place_of_the_one_before(tmp_path):
    for text in ("first", "second"):
        with staged_file(tmp_path / "data.jsonl") as scratch:
            scratch.write_text(text)
            assert text == "first" or (tmp_path / "data.jsonl").read_text() == "first"
        assert (tmp_path / "data.jsonl").read_text() == text
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_a_running_conversion_are_kept(tmp_path):
    with staged_directory(tmp_path / "model") as first:
        with staged_directory(tmp_path / "model") as second:
            assert first.exists()
            (second / "file").write_text("second")
        (first / "file").write_text("first")
    assert (tmp_path / "model" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_running_conversion_is_replacing_is_left_to_it(tmp_path, monkeypatch):
    """Another one starts between its two renames, and would put back what it has moved away."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    rename, others = Path.rename, []

    def interrupted(self, to):
        if ".partial-" in self.name:
            others.append(self)
            with pytest.raises(KeyError), staged_directory(tmp_path / "model"):
                raise KeyError
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", interrupted)
    with staged_directory(tmp_path / "model") as scratch:
        (scratch / "new").touch()
    assert len(others) == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new"]


def test_what_was_replaced_comes_back_after_a_kill_in_between(tmp_path):
    """As if the process had been killed between its last two renames."""
    (tmp_path / ".model.replaced-abcd1234").mkdir()
    (tmp_path / ".model.replaced-abcd1234" / "mine.txt").write_text("mine")
    neighbour = tmp_path / ".model.partial-of-something-else"
    neighbour.mkdir()
    with pytest.raises(KeyError), staged_directory(tmp_path / "model"):
        raise KeyError
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"
    assert neighbour.exists()
