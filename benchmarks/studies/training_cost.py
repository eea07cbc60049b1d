"""Time and memory of a training step: specstream-mlx train, mlx_lm.lora and the PyTorch trainer.

    python -m benchmarks.studies.training_cost --model runs/adapters/base --data streams.jsonl

All take the same batch of the same sequences again and again, on the same model, with the same
number of top layers trained: LoRA of rank 8 on them for mlx_lm.lora and for shared mode, streams in
them for both modes. Every run has a process of its own, so that its peak is its own, and the rounds
go through all of them in turn. Memory is the process's peak above what it held before the first
step, and what MLX itself counts: its peak over the model's weights.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import torch
import typer
from mlx_lm.tokenizer_utils import load as load_tokenizer
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.trainer import TrainingArgs
from mlx_lm.tuner.trainer import train as train_with_mlx_lm
from mlx_lm.tuner.utils import linear_to_lora_layers
from specstream_mlx.convert.pytorch import training_settings as pytorch_settings
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from specstream_mlx.convert.pytorch.trainer import build_model
from specstream_mlx.convert.pytorch.training_data import collate, read_pairs, tokenize
from transformers import AutoTokenizer

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track
from specstream_mlx.config import Mode
from specstream_mlx.hardware import device
from specstream_mlx.loading import load
from specstream_mlx.train.data import Split, read_split
from specstream_mlx.train.items import Item
from specstream_mlx.train.run import Run
from specstream_mlx.train.settings import TrainSettings
from specstream_mlx.train.start import start_of

from ..own_process import measured_by, peak_bytes
from ..report import RESULTS, Output, commit, machine_suffix, measured_on, table, write_report

MODULE = "benchmarks.studies.training_cost"

_MOST_TOKENS = 1024

_MLX_LM = "mlx_lm.lora"

WAYS = (
    *(_MLX_LM, f"{_MLX_LM}, checkpointed"),
    *("lossless", "lossless, checkpointed", "lossless, compiled"),
    *("shared", "shared, checkpointed", "shared, compiled"),
    *("PyTorch lossless", "PyTorch shared"),
)
"""The trainers; those without another name are ``specstream-mlx train``."""


class Steps(TrainingCallback):
    """The seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
        self.seconds.append(1 / train_info["iterations_per_second"])


def padded(items: list[Item]) -> tuple[mx.array, mx.array]:
    """The batch as mlx_lm makes it: tokens, filled up to one more than a multiple of 32, and where
    each sequence's completion begins and ends.
    """
    longest = max(len(item.tokens) for item in items)
    tokens = np.zeros((len(items), 1 + -(-longest // 32) * 32), np.int32)
    for row, item in zip(tokens, items, strict=True):
        row[: len(item.tokens)] = item.tokens
    return mx.array(tokens), mx.array([(item.stream_from, len(item.tokens)) for item in items])


def mlx_lm_steps(
    model: Path, data: Path, layers: int, steps: int, scratch: Path, checkpointed: bool
) -> dict[str, Any]:
    """Steps of mlx_lm's own trainer, on the model in the dtype that is fast here."""
    base, tokenizer = load(model)
    loaded = base.model
    items = read_split(data, tokenizer, _MOST_TOKENS).items
    loaded.freeze()
    linear_to_lora_layers(loaded, layers, {"rank": 8, "scale": 2.0, "dropout": 0.0})
    mx.eval(loaded.parameters())

    def batches(**options: Any) -> Iterator[tuple[mx.array, mx.array]]:
        while True:
            yield padded(items)

    arguments = TrainingArgs(
        batch_size=len(items),
        iters=steps,
        steps_per_report=1,
        steps_per_save=steps + 1,
        max_seq_length=_MOST_TOKENS,
        adapter_file=str(scratch / "adapters.safetensors"),
        grad_checkpoint=checkpointed,
    )
    times, before = Steps(), Memory()
    train_with_mlx_lm(
        loaded,
        optim.AdamW(learning_rate=1e-5),
        items,
        args=arguments,
        iterate_batches=batches,
        training_callback=times,
    )
    return {"seconds": times.seconds, **before.above()}


def our_steps(
    model: Path, data: Path, layers: int, steps: int, scratch: Path, mode: Mode, variant: str
) -> dict[str, Any]:
    """Steps of ``specstream-mlx train``."""
    settings = TrainSettings(
        model=str(model),
        data=str(data.parent),
        adapter_path=scratch / "adapter",
        mode=mode,
        num_msa_layers=layers,
        num_layers=layers,
        iters=steps,
        steps_per_report=1,
        save_every=steps + 1,
        grad_checkpoint=variant == "checkpointed",
        compile=variant == "compiled",
    )
    base, tokenizer = load(model)
    items = read_split(data, tokenizer, _MOST_TOKENS).items
    settings.batch_size = len(items)
    start = start_of(settings, base, tokenizer)
    run = Run(settings, start, Split(items, 0), None)
    run.directory.mkdir()
    mx.eval(start.model.parameters(), run.parameters)
    times, before = Steps(), Memory()
    run.iterate(times)
    return {"seconds": times.seconds, **before.above()}


def pytorch_steps(model: Path, data: Path, layers: int, steps: int, mode: Mode) -> dict[str, Any]:
    """Steps of the PyTorch trainer's kind, in float32."""
    settings = pytorch_settings.TrainSettings(
        model=model,
        data=data,
        output=Path(),
        mode=mode,
        num_msa_layers=layers,
        stream_head="conditioned",
        lora_layers=layers if mode == "shared" else None,
    )
    streaming = build_model(settings)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    batch = collate(tokenize(read_pairs(data), tokenizer, None, _MOST_TOKENS))
    optimizer = torch.optim.AdamW([p for p in streaming.parameters() if p.requires_grad], lr=1e-5)
    seconds, before = [], Memory()
    for _ in range(steps):
        began = time.perf_counter()
        n_gram_loss(streaming, batch, settings.alphas(settings.num_streams)).total.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "process": before.above()["process"]}


class Memory:
    """What the process holds, and what it holds more at its peak."""

    def __init__(self) -> None:
        mx.reset_peak_memory()
        self.process, self.counted = peak_bytes(), mx.get_active_memory()

    def above(self) -> dict[str, int]:
        """Bytes of the peak above the start: the process's, and those that MLX counts."""
        return {
            "process": peak_bytes() - self.process,
            "counted": mx.get_peak_memory() - self.counted,
        }


def one_run(way: str, model: Path, data: Path, layers: int, steps: int) -> dict[str, Any]:
    """Run one of ``WAYS`` for some steps: each step's seconds, bytes above the start."""
    trainer, _, variant = way.partition(", ")
    with tempfile.TemporaryDirectory() as scratch:
        arguments = model, data, layers, steps
        if trainer == _MLX_LM:
            return mlx_lm_steps(*arguments, Path(scratch), variant == "checkpointed")
        if trainer.startswith("PyTorch "):
            return pytorch_steps(*arguments, trainer.removeprefix("PyTorch "))
        return our_steps(*arguments, Path(scratch), trainer, variant)


def summary(way: str, runs: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """A row of the table: medians of all rounds' steps but each run's first."""
    seconds = median(second for run in runs for second in run["seconds"][1:])
    counted = [run["counted"] for run in runs if "counted" in run]
    return {
        "way": way,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "process": median(run["process"] for run in runs),
        "counted": median(counted) if counted else None,
    }


COLUMNS = {
    "trainer": "{way}",
    "step, s": "{seconds:.2f}",
    "of mlx_lm.lora": "{times:.2f}",
    "completion tokens/s": "{tokens_per_second:.0f}",
    "peak above the model, MB": "{megabytes:.0f}",
    "of mlx_lm.lora ": "{share:.2f}",
    "counted by MLX, MB": "{counted_megabytes}",
    "of mlx_lm.lora  ": "{counted_share}",
}


def markdown(rows: list[dict[str, Any]], sizes: str, facts: dict[str, Any]) -> list[str]:
    """The lines of the report."""
    first = rows[0]
    shown = [
        row
        | {
            "times": row["seconds"] / first["seconds"],
            "megabytes": row["process"] / 1e6,
            "share": row["process"] / first["process"],
            "counted_megabytes": f"{row['counted'] / 1e6:.0f}" if row["counted"] else "",
            "counted_share": f"{row['counted'] / first['counted']:.2f}" if row["counted"] else "",
        }
        for row in rows
    ]
    return [f"{measured_on(facts)}, {commit()}. {sizes}", "", *table(COLUMNS, shown)]


@one_line_errors
def main(
    model: Annotated[Path, typer.Option(help="Directory of a base in MLX format.")],
    data: Annotated[Path, typer.Option(help="JSONL of prompts and completions.")],
    batch: Annotated[int, typer.Option(help="Sequences, the file's first.", min=1)] = 8,
    layers: Annotated[int, typer.Option(help="Top layers that are trained.", min=1)] = 4,
    steps: Annotated[int, typer.Option(help="Steps of a run; the first is not counted.")] = 5,
    rounds: Annotated[int, typer.Option(help="Runs of each.", min=1)] = 3,
    output: Output = RESULTS,
    one: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure a training step of each trainer."""
    if one:
        with contextlib.redirect_stdout(sys.stderr):
            found = one_run(one, model, data, layers, steps)
        print(json.dumps(found))
        return
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        rows = data.read_text().splitlines(keepends=True)[:batch]
        sample = Path(scratch) / "train.jsonl"
        sample.write_text("".join(rows))
        tokenizer = load_tokenizer(model)
        items = read_split(sample, tokenizer, _MOST_TOKENS).items
        flags = ("--model", model, "--data", sample, "--layers", layers, "--steps", steps)
        for way in track([*WAYS] * rounds, "trainers"):
            torch_first = way.startswith("PyTorch")
            found = measured_by(MODULE, *flags, "--one", way, torch_first=torch_first)
            runs[way].append(found)
    tokens = sum(item.completion_tokens for item in items)
    sizes = (
        f"{model.name}: {len(items)} sequences of {min(len(i.tokens) for i in items)} to "
        f"{max(len(i.tokens) for i in items)} tokens, {tokens} of them in completions; the top "
        f"{layers} layers are trained; gamma = 4, conditioned heads."
    )
    ways = [summary(way, own, tokens) for way, own in runs.items()]
    facts = device.describe()
    lines = markdown(ways, sizes, facts)
    name = f"training-cost-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": facts, "sizes": sizes, "rows": ways}, lines))


if __name__ == "__main__":
    typer.run(main)
