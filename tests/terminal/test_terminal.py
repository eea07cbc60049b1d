"""Ends of commands: a user's mistake is one line and exit code 2; bars show on a terminal alone."""

import contextlib
import ctypes
import errno
import gc
import os
import pty
import re
import signal
import subprocess
import sys
import time
import weakref
from functools import partial

import pytest
from command_line import result_of
from tiny_training import completions, write_rows

from specstream_mlx import UserError
from specstream_mlx.options import integer, option
from specstream_mlx.terminal import progress
from specstream_mlx.terminal.errors import reported


def divide(by: int = option(1, integer(0), "The divisor.")) -> None:
    """Divide six."""
    if not by:
        raise UserError(f"--by is 0,\nexpected another number than {'y' * 5000}")
    print(6 // by)


def test_a_module_s_command_has_options_help_and_mistakes_of_one_line():
    assert result_of(divide, "--by", 2).stdout == "3\n"
    assert "The divisor." in result_of(divide, "--help").output
    result = result_of(divide, "--by", 0)
    sentence = f"error: --by is 0, expected another number than {'y' * 400} ..\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)
    with pytest.raises(ZeroDivisionError), reported():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("number", "name", "expected"),
    [
        (errno.ENOSPC, "out.json", "out.json cannot be written: No space left on device"),
        (errno.ENOSPC, None, "standard output cannot be written: No space left on device"),
        (errno.EACCES, "in.json", "in.json: Permission denied"),
    ],
)
def test_the_system_s_errors_say_what_failed(number, name, expected, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # which is closed where it fails
    with pytest.raises(SystemExit) as end, reported():
        raise OSError(number, os.strerror(number), name)
    assert (end.value.code, capsys.readouterr().err) == (2, f"error: {expected}\n")


def test_sigterm_is_not_taken_for_the_exit_of_an_import():
    """Modules of mlx-lm that miss a package exit as they are imported, which is caught."""
    with pytest.raises(SystemExit) as end, reported(), contextlib.suppress(SystemExit, Exception):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143


class Deleted:
    """Calls a function as it is deleted, where Python can raise nothing."""

    def __init__(self, call):
        self._call = call

    def __del__(self):
        self._call()


def in_del(call):
    Deleted(call)


def in_weak_callback(call):
    there = Deleted(lambda: None)
    kept = weakref.ref(there, lambda _: call())  # noqa: F841
    del there


def in_gc_callback(call):
    gc.callbacks.append(callback := lambda phase, _: phase == "start" and call())
    gc.collect()
    gc.callbacks.remove(callback)


def in_c_callback(call):
    ctypes.CFUNCTYPE(None)(call)()


def twice(call):
    """The second time as it is sent again."""
    Deleted(call)
    Deleted(partial(time.sleep, 0.3))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("place", [in_del, in_weak_callback, in_gc_callback, in_c_callback, twice])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_signal_is_not_lost_where_nothing_can_raise(goes_on, place, number, code, capsys):
    before, began = sys.unraisablehook, time.monotonic()
    with pytest.raises(SystemExit) as end, reported():
        place(partial(signal.raise_signal, number))
        if goes_on:
            time.sleep(60)
    assert (end.value.code, capsys.readouterr().err) == (code, "")
    assert time.monotonic() - began < 30
    assert sys.unraisablehook is before


def test_other_faults_where_nothing_can_raise_are_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    with reported():
        in_del(lambda: 1 / 0)
    assert [one.exc_type for one in shown] == [ZeroDivisionError]


def ended(module, *words, **how):
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **how)
    return done.returncode, done.stderr


def test_libraries_write_nothing_to_stderr(base, tmp_path):
    """In processes of their own, where no library has been imported before."""
    write_rows(tmp_path / "data.jsonl", completions(24))
    flags = ("--data", tmp_path / "data.jsonl", "--output", tmp_path / "run", "--model", base)
    flags += ("--mode", "shared", "--num-msa-layers", 1, "--iters", 2, "--batch-size", 2)
    assert ended("specstream_mlx.convert.pytorch.trainer", *flags) == (0, "")
    flags = ("--adapter-path", tmp_path / "run/adapter", "--mlx-path", tmp_path / "mlx")
    converted = ended("specstream_mlx", "convert", "--model", base, *flags)
    assert converted == (0, f"wrote {tmp_path / 'mlx'}\n")
    text = "the report is late " * 9000  # longer than the tokenizer would have it, too
    code, line = ended("specstream_mlx", "generate", "-q", "--model", base, input=text)
    assert (code, line.count("\n")) == (2, 1)
    assert "the model's context (max_position_embeddings) holds " in line


_WORK = """
import time
from specstream_mlx.terminal import progress
progress.SECONDS = {seconds}
for _ in progress.track(range(2), "cases"):
    with progress.progress("steps") as show:
        for done in range(5):
            show(done, 5)
            time.sleep({pause})
print("result")
"""


def shown(seconds, pause):
    """What such work writes to a pseudo-terminal on stderr."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _WORK.format(seconds=seconds, pause=pause)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, stdout=-1, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # Linux: the other end is closed
        while part := os.read(ours, 1 << 16):
            written += part
    os.close(ours)
    result, _ = process.communicate(timeout=60)
    assert (process.returncode, result) == (0, b"result\n")
    return written.decode()


def test_bars_have_a_remaining_time_and_leave_and_short_work_has_none():
    written = shown(seconds=0.1, pause=0.2)
    assert "cases" in written and "steps" in written
    assert re.search(r"\d:\d\d:\d\d left", re.sub(r"\x1b\[\d*m", "", written))
    assert re.search(r"\x1b\[2K\x1b\[\?25h\s*$", written)  # erased again, the cursor is back
    assert shown(seconds=30, pause=0.01) == ""


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        ([30, 31, 32, 33, 34], []),
        ([1, 2, 61, 62, 63], [60, 100]),
        ([1, 61, 121, 122, 182], [40, 60, 100]),
    ],
)
def test_lines_end_with_the_whole(seconds, shares, monkeypatch, capsys):
    """Where stderr is no terminal there is a line a minute, and a last one if there was any."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.progress("Timing both") as show:
        for number, now in enumerate(seconds, 1):  # noqa: B007
            show(number, 5)
        show(5, 5)
    assert capsys.readouterr().err.splitlines() == [f"Timing both: {share}%" for share in shares]


def test_nothing_is_shown_where_stderr_is_no_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    command = [sys.executable, "-c", _WORK.format(seconds=0.1, pause=0.1)]
    process = subprocess.run(command, capture_output=True, timeout=60)
    assert (process.stdout, process.stderr) == (b"result\n", b"")
