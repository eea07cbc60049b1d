"""Ends of commands: a user's mistake is one line and exit code 2."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import result_of

from specstream_mlx import UserError
from specstream_mlx.options import integer, option
from specstream_mlx.terminal.errors import reported


def divide(by: int = option(1, integer(0), "The divisor.")) -> None:
    """Divide six."""
    if not by:
        raise UserError(f"--by is 0,\nexpected another number than {'y' * 5000}")
    print(6 // by)


def test_a_module_s_command_has_options_help_and_mistakes_of_one_line():
    assert result_of(divide, "--by", 2).stdout == "3\n"
    text = result_of(divide, "--help").output
    assert "Divide six." in text and "The divisor." in text
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_output_to_a_full_disk():
    command = [sys.executable, "-m", "specstream_mlx", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=-1, text=True)
    expected = "error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_sigterm_is_not_taken_for_the_exit_of_an_import():
    """Modules of mlx-lm that miss a package exit as they are imported, which is caught."""
    with (
        pytest.raises(SystemExit) as end,
        reported(),
        contextlib.suppress(SystemExit, Exception),
    ):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143
