"""Commands that are modules of their own: a user's mistake is one line and exit code 2."""

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
        raise UserError("--by is 0,\nexpected another number")
    print(6 // by)


def test_options_and_help_are_the_command_s_own():
    assert result_of(divide, "--by", 2).stdout == "3\n"
    text = result_of(divide, "--help").output
    assert "Divide six." in text and "The divisor." in text


def test_a_mistake_of_the_user_is_one_line():
    result = result_of(divide, "--by", 0)
    assert result.exit_code == 2
    assert (result.stdout, result.stderr) == ("", "error: --by is 0, expected another number\n")


def test_a_name_longer_than_any_files_is_cut():
    def fails() -> None:
        raise UserError(f"{'y' * 5000} is missing")

    result = result_of(fails)
    assert result.exit_code == 2
    assert result.stderr == f"error: {'y' * 400} .. is missing\n"


def test_other_errors_stay_what_they_are():
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
@pytest.mark.parametrize("command", [("--version",), ("adapters", "info", "--json")])
def test_output_to_a_full_disk(command, base):
    command = (*command, str(base)) if "info" in command else command
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "specstream_mlx", *command], stdout=full, stderr=-1, text=True
        )
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
