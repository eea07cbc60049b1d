"""Commands that find the disk full say so, and half-write nothing."""

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


def in_this_process(command: str, work: Path, target: Path) -> Result:
    _, *values = arguments(command, work, target)
    if command != "trainer":
        return run(*values)
    return CliRunner().invoke(program(trainer.main, hidden=True), values)


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
