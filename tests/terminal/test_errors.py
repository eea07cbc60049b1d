"""Ends of commands: a user's mistake is one line and exit code 2."""

import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest
from command_line import result_of
from torch_tiny import tiny_completions

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


def test_sigterm_is_not_taken_for_the_exit_of_an_import():
    """Modules of mlx-lm that miss a package exit as they are imported, which is caught."""
    with (
        pytest.raises(SystemExit) as end,
        reported(),
        contextlib.suppress(SystemExit, Exception),
    ):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143


TRAIN_AND_CONVERT = """
import sys
from specstream_mlx.convert.pytorch import trainer
from specstream_mlx.cli import main
from specstream_mlx.terminal.commands import program
folder, base = sys.argv[1:]
program(trainer.main)(
    f"--mode shared --iters 2 --model {base} --data {folder}/data.jsonl --output {folder}/run "
    "--num-msa-layers 1 --batch-size 2".split()
)
main(f"convert --model {base} --adapter-path {folder}/run/adapter --mlx-path {folder}/mlx".split())
"""


def test_libraries_write_nothing_to_stderr(base, tmp_path):
    """In processes of their own, where no library has been imported before."""
    tiny_completions(tmp_path / "data.jsonl")
    command = [sys.executable, "-c", TRAIN_AND_CONVERT, str(tmp_path), str(base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, f"wrote {tmp_path / 'mlx'}\n")
    command = [sys.executable, "-m", "specstream_mlx", "generate", "-q", "--model", str(base)]
    text = "the report is late " * 9000  # longer than the tokenizer would have it, too
    done = subprocess.run(command, capture_output=True, input=text, text=True, timeout=300)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "the model's context (max_position_embeddings) holds " in line
