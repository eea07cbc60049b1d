"""Commands that are killed half-write nothing."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from command_line import result_of, run
from specstream_mlx.convert.pytorch import trainer
from tiny_models import tiny_llama_directory
from tiny_training import data_directory
from torch_tiny import tiny_completions

from specstream_mlx.train.run import last_checkpoint, run_directory


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    tiny_llama_directory(directory / "hf", num_hidden_layers=2, num_attention_heads=2)
    tiny_completions(directory / "data.jsonl")
    data_directory(directory / "data")
    return directory


TRAIN = ("--iters", 12, "--num-msa-layers", 1, "--save-every", 1, "--batch-size", 8)
QUICK = ("--steps-per-eval", 3, "--no-outcome")


def arguments(command: str, work: Path, target: Path) -> list[str]:
    values = {
        "convert": ("--mlx-path", target, "--overwrite"),
        "train": ("--data", work / "data", "--adapter-path", target, *TRAIN, *QUICK),
        "trainer": ("--data", work / "data.jsonl", "--output", target, *TRAIN),
    }[command]
    name = () if command == "trainer" else (command,)
    return [*name, "--model", *map(str, (work / "hf", *values))]


def written(target: Path) -> dict[str, bytes]:
    """The files of a target by name, but those that say when they were made, and hidden ones."""
    files = {path.relative_to(target): path for path in target.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in files.items()
        if name.name not in ("checkpoint.pt", "log.jsonl") and not name.parts[0].startswith(".")
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", ["convert", "trainer", "train"])
def test_a_command_that_is_killed_and_run_again(command, work, tmp_path):
    """When it writes, and at a random moment later: what it writes is whole or not there."""
    rng, target = random.Random(command), tmp_path / "killed"
    main = partial(result_of, trainer.main, hidden=True) if command == "trainer" else run
    assert main(*arguments(command, work, tmp_path / "whole")).exit_code == 0
    whole = written(tmp_path / "whole")
    program, checkpoint = "specstream_mlx", last_checkpoint(run_directory(target))
    if command == "trainer":
        program += ".convert.pytorch.trainer"
        checkpoint = target / "checkpoint.pt"

    def resume():
        return ["--resume"] if checkpoint.exists() else []

    def seen():
        with contextlib.suppress(FileNotFoundError):  # what was renamed meanwhile
            return {(path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}

    codes = []
    for delay in (0, rng.uniform(0, 0.3)):
        before, values = seen(), [*arguments(command, work, target), *resume()]
        call = [sys.executable, "-m", program, *values]
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL)
        while process.poll() is None and seen() == before:
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        codes.append(process.wait())
        assert written(target) in ({}, whole)
    assert codes[0] == -signal.SIGKILL and codes[1] in (-signal.SIGKILL, 0)
    result = main(*arguments(command, work, target), *resume())
    assert result.exit_code == 0, result.output
    assert written(target) == whole
    assert not list(tmp_path.rglob(".*"))
