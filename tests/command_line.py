"""Runs the command line, and modules that are programs, in this process."""

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest.mock import patch

from specstream_mlx.cli import main
from specstream_mlx.terminal.commands import program


@dataclass
class Result:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self):
        return self.stdout + self.stderr


def invoke(command, args, stdin=None):
    """What ``command``, called with words of a command line, does."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2)]
    out, err = streams
    given = stdin if isinstance(stdin, bytes) else (stdin or "").encode()
    # As Python opens it on Linux and macOS, where the \r of other systems' lines stays.
    typed = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8", newline="\n")
    code = 0
    with (
        patch.object(sys, "stdin", typed),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            command([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code or 0
    for stream in streams:
        stream.flush()
    return Result(code, *(stream.buffer.getvalue().decode() for stream in streams))


def run(*args, stdin=None):
    return invoke(main, args, stdin)


def result_of(command, *args):
    return invoke(program(command), args)


def succeeded(result):
    """The result of a command that must not fail."""
    assert result.exit_code == 0, result.output
    return result


def run_program(command, *args):
    """Run a module's command, which must not fail."""
    succeeded(result_of(command, *args))


def generate(base, *args, prompt="hello there", **kwargs):
    flags = ("--model", base, "-p", prompt, "-m", 12)
    return run("generate", *flags, *args, **kwargs)


def refusal(result):
    """The one sentence that the command ends with."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line
