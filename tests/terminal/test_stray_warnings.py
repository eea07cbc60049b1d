"""On stderr stands what the commands themselves say."""

import os
import subprocess
import sys

from torch_tiny import tiny_completions


def stderr_of(*args, stdin=None):
    """Of a process of its own, where no library has been imported before."""
    command = [sys.executable, "-m", *map(str, args)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, capture_output=True, input=stdin, text=True, timeout=300, env=environment
    )
    return process.returncode, process.stderr


def test_a_prompt_that_is_longer_than_the_tokenizer_would_have_it(toy_directory):
    model = ("--model", toy_directory / "base")
    text = "the report is late " * 900
    code, stderr = stderr_of("specstream_mlx", "generate", "-q", *model, stdin=text)
    assert code == 2
    (line,) = stderr.splitlines()
    assert "the model's context (max_position_embeddings) holds 2048" in line


def test_training_and_converting_a_lora(base, tmp_path):
    tiny_completions(tmp_path / "data.jsonl")
    code, stderr = stderr_of(
        *("specstream_mlx.convert.pytorch.trainer", "--mode", "shared", "--iters", 2),
        *("--model", base, "--data", tmp_path / "data.jsonl", "--output", tmp_path / "run"),
        *("--num-msa-layers", 1, "--batch-size", 2),
    )
    assert (code, stderr) == (0, "")
    flags = ("--adapter-path", tmp_path / "run" / "adapter", "--mlx-path", tmp_path / "mlx")
    code, stderr = stderr_of("specstream_mlx", "convert", "--model", base, *flags)
    assert code == 0
    assert stderr == f"wrote {tmp_path / 'mlx'}\n"
