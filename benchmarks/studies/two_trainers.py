"""The same streams from nothing by both trainers: specstream-mlx train beside the PyTorch trainer.

    python -m benchmarks.studies.two_trainers --model runs/adapters/base \\
        --data runs/adapters/streams.jsonl --valid runs/adapters/streams-typed.jsonl --work runs/two

Both take as many steps on the same batches in the same order, in float32, with the same settings;
only the new weights are drawn by different generators. Both adapters are scored by exact replay on
the same texts that the base wrote. The same command resumes.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from specstream_mlx.convert.to_mlx.adapter import convert_adapter

from specstream_mlx.hardware import device
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..own_process import run_module
from ..replay import replay
from ..report import OUTPUT, commit, machine_suffix, measured_on, table, write_report

_MOST_TOKENS = 512


@dataclass(frozen=True)
class Runs:
    """What all runs have in common."""

    model: Path = option(..., PATH, "Directory of a base in MLX format.")
    data: Path = option(..., PATH, "JSONL of prompts and the base's answers.")
    valid: Path = option(..., PATH, "The same, to score on.")
    work: Path = option(..., PATH, "Directory for the runs.")
    iters: int = option(100, integer(1), "Steps of each run.")
    batch_size: int = option(16, integer(1), "Sequences of a step.")

    def settings(self, seed: int) -> dict[str, Any]:
        """The settings of both trainers, besides files."""
        sizes = {"iters": self.iters, "batch_size": self.batch_size}
        return sizes | {"seed": seed, "max_seq_length": _MOST_TOKENS}


def by_pytorch(runs: Runs, output: Path, seed: int) -> Path:
    """Train with the PyTorch trainer, or go on, and convert; returns the converted adapter."""
    settings, model = runs.settings(seed), runs.model
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    if (output / "checkpoint.pt").exists():
        flags.append("--resume")
    places = ("--model", model, "--data", runs.data, "--output", output)
    module = "specstream_mlx.convert.pytorch.trainer"
    run_module(module, *places, *flags, "--no-bf16", torch_first=True)
    convert_adapter(output / "adapter", model, output / "mlx")
    return output / "mlx"


def by_mlx(runs: Runs, output: Path, seed: int) -> Path:
    """Train with ``specstream-mlx train``, or go on; returns the adapter."""
    output.mkdir(parents=True, exist_ok=True)
    directory, adapter = output / "data", output / "mlx"
    directory.mkdir(exist_ok=True)
    (directory / "train.jsonl").write_bytes(runs.data.read_bytes())
    settings = runs.settings(seed) | {"model": str(runs.model), "data": str(directory)}
    config = output / "train.yaml"
    config.write_text(json.dumps(settings))  # which is YAML
    flags = ["-c", config, "--adapter-path", adapter, "--no-outcome"]
    if (output / "mlx.training" / "last.safetensors").exists():
        flags.append("--resume")
    run_module("specstream_mlx", "train", *flags)
    return adapter


TRAINERS = {"MLX": by_mlx, "PyTorch": by_pytorch}


def one_run(runs: Runs, trainer: str, seed: int) -> dict[str, Any]:
    """Train and score, or read the result of an earlier call."""
    output = runs.work / f"{trainer.lower()}-{seed}-{runs.iters}"
    file = output / "result.json"
    if not file.exists():
        began = time.monotonic()
        adapter = TRAINERS[trainer](runs, output, seed)
        minutes = (time.monotonic() - began) / 60
        found = replay(runs.model, adapter, runs.valid, _MOST_TOKENS)
        file.write_text(json.dumps({"trainer": trainer, "seed": seed, "minutes": minutes} | found))
    return json.loads(file.read_text())


COLUMNS = {
    "trainer": "{trainer}",
    "seed": "{seed}",
    "streams right by depth": "{depths}",
    "loss": "{loss:.3f}",
    "accepted length": "{accepted_length:.3f}",
    "minutes": "{minutes:.1f}",
}


def markdown(rows: list[dict[str, Any]], facts: str) -> list[str]:
    """The lines of the report."""
    shown = [
        row | {"depths": " ".join(f"{share:.3f}" for share in row["accuracy"][1:])} for row in rows
    ]
    lengths = {
        trainer: mean(row["accepted_length"] for row in rows if row["trainer"] == trainer)
        for trainer in TRAINERS
    }
    ours, pytorch = lengths.values()
    ratio = f"Accepted length of MLX's over PyTorch's, means over seeds: {ours / pytorch:.3f}."
    return [facts, "", *table(COLUMNS, shown), "", ratio]


def main(
    *,
    runs: Runs,
    seeds: int = option(2, integer(1), "Runs of each trainer."),
    output: Path = OUTPUT,
) -> None:
    """Train the same streams with both trainers and compare them (resumable)."""
    pairs = [(trainer, seed) for seed in range(seeds) for trainer in TRAINERS]
    rows = [one_run(runs, *pair) for pair in track(pairs, "runs")]
    facts = device.describe()
    text = (
        f"{measured_on(facts)}, {commit()}. Lossless streams from nothing, {runs.iters} steps of "
        f"{runs.batch_size} texts, each trainer with its defaults. Scored by replay on "
        f"{rows[0]['texts']} texts that the base wrote."
    )
    name = f"two-trainers-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": text, "rows": rows}, markdown(rows, text)))


if __name__ == "__main__":
    program(main)()
