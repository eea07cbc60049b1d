"""Commands that are stopped at any moment, or find the disk full, lose and half-write nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import refusal, run
from specstream_mlx.convert.pytorch import checkpoint, trainer
from specstream_mlx.convert.to_mlx import base as base_conversion
from tiny_models import tiny_llama_directory
from torch_tiny import tiny_completions
from typer import Typer
from typer.testing import CliRunner, Result

from specstream_mlx import prompt_cache_files

# What a command needs is imported beforehand, so that all moments are moments of its work.
_READY = 'print("ready", flush=True)\n'
_COMMAND_LINE = f"""
import mlx_lm, specstream_mlx.convert.to_mlx.base, specstream_mlx.loop
from specstream_mlx.cli import main
{_READY}main()
"""
_TRAINER = f"""
import typer
from specstream_mlx.convert.pytorch.trainer import main
{_READY}typer.run(main)
"""
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
_MOMENTS = 4


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A model and training data."""
    directory = tmp_path_factory.mktemp("work")
    tiny_llama_directory(directory / "hf", num_hidden_layers=2, num_attention_heads=2)
    tiny_completions(directory / "data.jsonl")
    return directory


def arguments(command: str, work: Path, target: Path) -> list[str]:
    """The code that runs a command and its arguments, with which it writes ``target``."""
    base = ("--model", work / "hf")
    if command == "convert":
        values = ("convert", *base, "--mlx-path", target, "--overwrite")
    elif command == "cache-prompt":
        values = ("cache-prompt", *base, "--prompt-cache-file", target, "-p", "the report " * 50)
    else:
        values = (*base, "--data", work / "data.jsonl", "--output", target, "--iters", 12)
        values += ("--num-msa-layers", 1, "--batch-size", 4, "--no-bf16")
        values += ("--save-every", 1, "--log-every", 1)
    code = _TRAINER if command == "trainer" else _COMMAND_LINE
    return [code, *map(str, values)]


def started(command: list[str]) -> subprocess.Popen:
    """A process that has imported what it needs."""
    process = subprocess.Popen(
        [sys.executable, "-c", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def finished(command: list[str]) -> float:
    """Run a command to its end; returns the seconds that it took."""
    process = started(command)
    began = time.perf_counter()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return time.perf_counter() - began


def written(target: Path) -> dict[str, bytes]:
    """The files of a target by name, but those that say when they were made."""
    if target.is_file():
        return {target.name: target.read_bytes()}
    files = (path for path in target.rglob("*") if path.is_file())
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in files
        if path.name not in ("checkpoint.pt", "log.jsonl")
    }


@pytest.mark.slow
@pytest.mark.parametrize("stop", _CODES, ids=lambda stop: stop.name)
@pytest.mark.parametrize("command", ["convert", "cache-prompt", "trainer"])
def test_a_command_that_is_stopped(command, stop, work, tmp_path):
    """At random moments of its work, half of them while a file is being written.

    What it writes is complete or as it was before, nothing else is left unless it was killed, and
    the run after the last one that was stopped does what an undisturbed one does.
    """
    rng = random.Random(f"{command} {stop}")
    target = tmp_path / "out" / "cache.safetensors"
    target.parent.mkdir()
    seconds = finished(arguments(command, work, target))
    complete = written(target)
    if command == "trainer":
        target = tmp_path / "stopped" / "run"
    for moment in range(_MOMENTS):
        process = started(next_call(command, work, target))
        if moment % 2:
            beside = target if command == "trainer" else target.parent
            while not list(beside.glob(".*.partial-*")) and process.poll() is None:
                pass
            time.sleep(rng.uniform(0, 0.01))
        else:
            time.sleep(rng.uniform(0, seconds))
        process.send_signal(stop)
        _, errors = process.communicate(timeout=300)
        # Before and after its work a command ends by the signal, which a shell reports as the code.
        assert process.returncode in (_CODES[stop], -stop, 0), errors.decode()
        assert process.returncode != _CODES[stop] or b"Traceback" not in errors

        leftovers = list(target.parent.rglob(".*"))
        assert not leftovers or stop == signal.SIGKILL
        if command == "trainer":
            check_run(target, complete)
        else:
            assert written(target) in (complete, {} if leftovers else complete)
    finished(next_call(command, work, target))
    assert written(target) == complete
    assert not list(target.parent.rglob(".*"))


def next_call(command: str, work: Path, target: Path) -> list[str]:
    """A call that goes on from what a call that was stopped has left."""
    resumes = command == "trainer" and (target / "checkpoint.pt").exists()
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
    app = Typer()
    app.command()(trainer.main)
    return CliRunner().invoke(app, values)


def check_full(work: Path, directory: Path) -> None:
    """On a full disk each command says so in one sentence and leaves no file."""
    for command, name in (
        ("convert", "model"),
        ("cache-prompt", "cache.safetensors"),
        ("trainer", "run/checkpoint.pt"),
    ):
        path = directory / name
        result = in_this_process(command, work, path.parent if command == "trainer" else path)
        assert refusal(result) == f"error: {path} cannot be written: No space left on device"
        assert not [found for found in directory.rglob("*") if found.is_file()]
        assert not list(directory.rglob(".*"))


def test_a_disk_that_fills_up(work, tmp_path, monkeypatch):
    """After some bytes have been written."""

    def full(path, *_):
        path = path if isinstance(path, Path) else Path(path)
        (path / "half" if path.is_dir() else path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(base_conversion, "write_weights", full)
    monkeypatch.setattr(prompt_cache_files, "save_prompt_cache", full)
    monkeypatch.setattr(checkpoint.torch, "save", lambda _, path: full(path))
    check_full(work, tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 kB."""
    mount = ("mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", tmp_path)
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield tmp_path
    subprocess.run(("umount", "-l", tmp_path), check=True)  # some library keeps its file open


def test_a_disk_that_is_too_small(work, small_disk):
    """However MLX, torch and the tokenizer say so."""
    check_full(work, small_disk)
