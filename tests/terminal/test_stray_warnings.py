"""On stderr stands what the commands themselves say."""

import os
import subprocess
import sys

from torch_tiny import tiny_completions


def stderr_of(*args, stdin=None):
    """Of a process of its own, where no library has been imported before."""
    command = [sys.executable, *map(str, args)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, capture_output=True, input=stdin, text=True, timeout=300, env=environment
    )
    return process.returncode, process.stderr


def test_a_prompt_that_is_longer_than_the_tokenizer_would_have_it(toy_directory):
    model = ("--model", toy_directory / "base")
    text = "the report is late " * 900
    code, stderr = stderr_of("-m", "specstream_mlx", "generate", "-q", *model, stdin=text)
    assert code == 2
    (line,) = stderr.splitlines()
    assert "the model's context (max_position_embeddings) holds 2048" in line


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


def test_training_and_converting_a_lora(base, tmp_path):
    tiny_completions(tmp_path / "data.jsonl")
    code, stderr = stderr_of("-c", TRAIN_AND_CONVERT, tmp_path, base)
    assert (code, stderr) == (0, f"wrote {tmp_path / 'mlx'}\n")
