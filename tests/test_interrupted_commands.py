"""Commands that are stopped at any moment, or find the disk full, lose and half-write nothing."""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import refusal, run
from specstream_mlx.convert.pytorch import checkpoint, trainer
from specstream_mlx.convert.to_mlx import base as base_conversion
from tiny_models import tiny_llama_directory
from tiny_training import data_directory
from torch_tiny import tiny_completions
from typer.testing import CliRunner, Result

from specstream_mlx.terminal.commands import program
from specstream_mlx.train import checkpoint as train_checkpoint
from specstream_mlx.train.checkpoint import Checkpoint
from specstream_mlx.train.run import run_directory

_FORKS = """
import os, sys
import mlx_lm, specstream_mlx.convert.to_mlx.base, specstream_mlx.loop
from specstream_mlx.cli import main
from specstream_mlx.convert.pytorch.trainer import main as train
from specstream_mlx.terminal.commands import program

print("ready", flush=True)
for line in sys.stdin:
    errors, command, *values = line[:-1].split("\\t")
    pid = os.fork()
    if not pid:
        for path, number in ((os.devnull, 0), (os.devnull, 1), (errors, 2)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv[1:] = values
        program(train)() if command == "trainer" else main()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
_MOMENTS = 6


class Forks:
    """A process that has imported what commands need, and forks one process for each call.

    So all moments of a call are moments of its work.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        return self._process.stdout.readline().strip()

    def start(self, errors: Path, values: list[str]) -> "Call":
        """Begin a call whose standard error goes into a file."""
        self._process.stdin.write("\t".join([str(errors), *values]) + "\n")
        self._process.stdin.flush()
        return Call(self, int(self._line()), errors)

    def ended(self) -> bool:
        """Whether the last call has."""
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def code(self) -> int:
        """Wait for the last call's end; its exit code, or the signal's number below 0."""
        return int(self._line())

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate(timeout=60)


@dataclass
class Call:
    """One call of a command."""

    forks: Forks
    pid: int
    errors: Path

    def stop(self, number: int) -> tuple[int, str]:
        """Send a signal unless the call has ended; its exit code and what it said."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return self.forks.code(), self.errors.read_text()


@pytest.fixture(scope="module")
def forks():
    process = Forks()
    yield process
    process.close()


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A model and training data."""
    directory = tmp_path_factory.mktemp("work")
    tiny_llama_directory(directory / "hf", num_hidden_layers=2, num_attention_heads=2)
    tiny_completions(directory / "data.jsonl")
    data_directory(directory / "data")
    return directory


def arguments(command: str, work: Path, target: Path) -> list[str]:
    """A command's name and the arguments with which it writes ``target``."""
    base = ("--model", work / "hf")
    if command == "convert":
        values = ("convert", *base, "--mlx-path", target, "--overwrite")
    elif command == "train":
        values = ("train", *base, "--data", work / "data", "--adapter-path", target)
        values += ("--iters", 12, "--num-msa-layers", 1, "--batch-size", 8)
        values += ("--save-every", 1, "--steps-per-eval", 3, "--no-outcome")
    else:
        values = (*base, "--data", work / "data.jsonl", "--output", target, "--iters", 12)
        values += ("--num-msa-layers", 1, "--batch-size", 4, "--no-bf16")
        values += ("--save-every", 1, "--log-every", 1)
    return [command, *map(str, values)]


def finished(forks: Forks, errors: Path, values: list[str]) -> float:
    """Run a command to its end; returns the seconds that it took."""
    began = time.perf_counter()
    forks.start(errors, values)
    assert forks.code() == 0, errors.read_text()
    return time.perf_counter() - began


def written(target: Path) -> dict[str, bytes]:
    """The files of a target by name, but those that say when they were made.

    What a killed process leaves unfinished in hidden directories is no part of it.
    """
    names = (path.relative_to(target) for path in target.rglob("*") if path.is_file())
    return {
        name.as_posix(): (target / name).read_bytes()
        for name in names
        if name.name not in ("checkpoint.pt", "log.jsonl") and not name.parts[0].startswith(".")
    }


@pytest.mark.slow
@pytest.mark.parametrize("stop", _CODES, ids=lambda stop: stop.name)
@pytest.mark.parametrize("command", ["convert", "trainer", "train"])
def test_a_command_that_is_stopped(command, stop, forks, work, tmp_path):
    """At random moments of its work, half of them while a file is being written.

    What it writes is complete or as it was before, nothing else is left unless it was killed, and
    the run after the last one that was stopped does what an undisturbed one does.
    """
    rng, said = random.Random(f"{command} {stop}"), tmp_path / "errors"
    target = tmp_path / "out" / "model"
    target.parent.mkdir()
    seconds = finished(forks, said, arguments(command, work, target))
    complete = written(target)
    if command in ("trainer", "train"):
        target = tmp_path / "stopped" / "run"
    for moment in range(_MOMENTS):
        call = forks.start(said, next_call(command, work, target))
        if moment % 2:
            beside = {"trainer": target, "train": run_directory(target)}.get(command, target.parent)
            while not list(beside.glob(".*.partial-*")) and not forks.ended():
                pass
            time.sleep(rng.uniform(0, 0.01))
        else:
            time.sleep(rng.uniform(0, seconds))
        code, errors = call.stop(stop)
        # Before and after its work a command ends by the signal, which a shell reports as the code.
        assert code in (_CODES[stop], -stop, 0), errors
        assert code != _CODES[stop] or "Traceback" not in errors

        leftovers = list(target.parent.rglob(".*"))
        assert not leftovers or stop == signal.SIGKILL
        if command == "trainer":
            check_run(target, complete)
        elif command == "train":
            assert written(target) in ({}, complete)
            if (last := run_directory(target) / "last.safetensors").exists():
                Checkpoint.load(last)
        else:
            assert written(target) in (complete, {} if leftovers else complete)
    finished(forks, said, next_call(command, work, target))
    assert written(target) == complete
    assert not list(target.parent.rglob(".*"))


def next_call(command: str, work: Path, target: Path) -> list[str]:
    """A call that goes on from what a call that was stopped has left."""
    checkpoint = target / "checkpoint.pt"
    if command == "train":
        checkpoint = run_directory(target) / "last.safetensors"
    resumes = command in ("trainer", "train") and checkpoint.exists()
    return arguments(command, work, target) + ["--resume"] * resumes


def check_run(output: Path, complete: dict[str, bytes]) -> None:
    """The files of a training run that was stopped can be read, and its adapter is whole."""
    assert written(output) in ({}, complete)
    if (output / "checkpoint.pt").exists():
        trainer.torch.load(output / "checkpoint.pt", weights_only=True)
    if (output / "log.jsonl").exists():
        assert (output / "log.jsonl").read_bytes()[-2:] in (b"", b"}\n")


# A full disk ----------------------------------------------------------------------------------


def in_this_process(command: str, work: Path, target: Path) -> Result:
    _, *values = arguments(command, work, target)
    if command != "trainer":
        return run(*values)
    return CliRunner().invoke(program(trainer.main), values)


def test_a_disk_that_fills_up(work, tmp_path, monkeypatch):
    """Each command says so in one sentence and leaves no file."""

    def full(path, *_, **__):
        path = path if isinstance(path, Path) else Path(path)
        (path / "half" if path.is_dir() else path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(base_conversion, "write_weights", full)
    monkeypatch.setattr(checkpoint.torch, "save", lambda _, path: full(path))
    monkeypatch.setattr(train_checkpoint.mx, "save_safetensors", full)
    for command, name in (
        ("convert", "model"),
        ("trainer", "run/checkpoint.pt"),
        ("train", "adapter.training/last.safetensors"),
    ):
        path = tmp_path / name
        target = {"trainer": path.parent, "train": tmp_path / "adapter"}.get(command, path)
        result = in_this_process(command, work, target)
        if command == "train":  # says what it is about to do
            result.stderr_bytes = result.stderr_bytes.splitlines()[-1]
        assert refusal(result) == f"error: {path} cannot be written: No space left on device"
        assert not [found for found in tmp_path.rglob("*") if found.is_file()]
        assert not list(tmp_path.rglob(".*"))
