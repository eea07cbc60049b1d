"""Small training data in mlx-lm's formats, and runs on it."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlx_lm.tuner.callbacks import TrainingCallback

from specstream_mlx import load
from specstream_mlx.train.data import read_split
from specstream_mlx.train.run import TrainingRun
from specstream_mlx.train.settings import TrainSettings
from specstream_mlx.train.start import start_of

WORDS = ["check", "numbers", "meeting", "report", "team", "noon"]


def completions(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Prompts and completions that a tiny model learns soon."""
    rng = random.Random(seed)
    words = [rng.sample(WORDS, 3) for _ in range(count)]
    return [{"prompt": " ".join(three), "completion": f"the team {three[0]}"} for three in words]


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """Write a JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[Any]:
    """The JSON objects of a file, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def data_directory(directory: Path) -> Path:
    """Write ``train.jsonl`` and ``valid.jsonl``."""
    directory.mkdir(parents=True, exist_ok=True)
    write_rows(directory / "train.jsonl", completions(24))
    write_rows(directory / "valid.jsonl", completions(6, seed=1))
    return directory


class Reports(TrainingCallback):
    """Keeps what a run reports."""

    def __init__(self):
        self.train, self.valid = [], []

    def on_train_loss_report(self, train_info):
        self.train.append(train_info)

    def on_val_loss_report(self, val_info):
        self.valid.append(val_info)


def make_run(base: Path, target: Path, **changes) -> TrainingRun:
    """A run on ``data_directory`` beside its target, ready to iterate."""
    data = data_directory(target.parent / "data")
    fields = {"num_msa_layers": 2, "iters": 16, "batch_size": 8, "learning_rate": 2e-2}
    fields |= {"steps_per_report": 4, "steps_per_eval": 8, "stream_head_rank": 4, **changes}
    settings = TrainSettings(model=str(base), data=str(data), adapter_path=target, **fields)
    settings.check()
    start = start_of(settings, *load(base))
    limits = settings.max_seq_length, start.base.config["vocab_size"]
    files = data / "train.jsonl", data / "valid.jsonl"
    run = TrainingRun(
        settings, start, *(read_split(file, start.tokenizer, *limits) for file in files)
    )
    run.directory.mkdir(exist_ok=True)
    return run
