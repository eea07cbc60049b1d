"""Time and memory of a training step: specstream-mlx train, mlx_lm.lora and the PyTorch trainer.

    python -m benchmarks.studies.training_cost
    python -m benchmarks.studies.training_cost --random 1.1B --ways "lossless, checkpointed"

All take the same batch of random tokens again and again, on the same model, with the same number of
top layers trained: LoRA of rank 8 on them for mlx_lm.lora and for shared mode, streams in them for
both modes. Every run has a process of its own, so that its peak is its own, and the rounds go
through all of them in turn. Memory is the process's peak above what it held before the first step,
and what MLX itself counts: its peak over the model's weights.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import (
    Any,
    Literal,
)

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import torch
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.trainer import TrainingArgs
from mlx_lm.tuner.trainer import train as train_with_mlx_lm
from mlx_lm.tuner.utils import linear_to_lora_layers
from specstream_mlx.convert.pytorch import training_settings as pytorch_settings
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from specstream_mlx.convert.pytorch.trainer import build_model
from specstream_mlx.convert.pytorch.training_data import collate

from specstream_mlx import demonstration
from specstream_mlx.config import Mode, UserError
from specstream_mlx.hardware import device
from specstream_mlx.loading import load
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.data import Split
from specstream_mlx.train.items import Item
from specstream_mlx.train.run import Run
from specstream_mlx.train.settings import TrainSettings
from specstream_mlx.train.start import start_of

from ..own_process import in_own_process, peak_bytes
from ..report import OUTPUT, commit, machine_suffix, measured_on, table, write_report
from .export_memory import make_base

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


@dataclass(frozen=True)
class Setup:
    """The set-up that all trainers have in common.

    Attributes:
        model: directory of a base in MLX format.
        layers: top layers that are trained.
        steps: of a run.
        batch: sequences of a step.
        prompt, completion: tokens of each.
    """

    model: Path
    layers: int
    steps: int
    batch: int
    prompt: int
    completion: int

    def items(self, vocab_size: int) -> list[Item]:
        """The batch: random tokens, the same for every trainer."""
        size = (self.batch, self.prompt + self.completion)
        tokens = np.random.default_rng(0).integers(vocab_size, size=size)
        return [Item(row, self.prompt) for row in tokens.tolist()]


def mlx_lm_steps(setup: Setup, scratch: Path, checkpointed: bool) -> dict[str, Any]:
    """Steps of mlx_lm's own trainer, on the model in the dtype that is fast here."""
    base, _ = load(setup.model)
    model = base.model
    items = setup.items(base.config["vocab_size"])
    model.freeze()
    linear_to_lora_layers(model, setup.layers, {"rank": 8, "scale": 2.0, "dropout": 0.0})
    mx.eval(model.parameters())
    tokens = mx.array([item.tokens for item in items])
    ends = mx.array([(item.stream_from, len(item.tokens)) for item in items])

    def batches(**options: Any) -> Iterator[tuple[mx.array, mx.array]]:
        while True:
            yield tokens, ends

    arguments = TrainingArgs(
        batch_size=setup.batch,
        iters=setup.steps,
        steps_per_report=1,
        steps_per_save=setup.steps + 1,
        adapter_file=str(scratch / "adapters.safetensors"),
        grad_checkpoint=checkpointed,
    )
    times, before = Steps(), Memory()
    train_with_mlx_lm(
        model,
        optim.AdamW(learning_rate=1e-5),
        items,
        args=arguments,
        iterate_batches=batches,
        training_callback=times,
    )
    return {"seconds": times.seconds, **before.above()}


def our_steps(setup: Setup, scratch: Path, mode: Mode, variant: str) -> dict[str, Any]:
    """Steps of ``specstream-mlx train``."""
    settings = TrainSettings(
        model=str(setup.model),
        data="random",
        adapter_path=scratch / "adapter",
        mode=mode,
        num_msa_layers=setup.layers,
        num_layers=setup.layers,
        batch_size=setup.batch,
        iters=setup.steps,
        steps_per_report=1,
        save_every=setup.steps + 1,
        grad_checkpoint=variant == "checkpointed",
        compile=variant == "compiled",
    )
    base, tokenizer = load(setup.model)
    start = start_of(settings, base, tokenizer)
    items = setup.items(base.config["vocab_size"])
    run = Run(settings, start, Split(items, 0), None)
    run.directory.mkdir()
    mx.eval(start.model.parameters(), run.parameters)
    times, before = Steps(), Memory()
    run.iterate(times)
    return {"seconds": times.seconds, **before.above()}


def pytorch_steps(setup: Setup, mode: Mode) -> dict[str, Any]:
    """Steps of the PyTorch trainer's kind, in float32."""
    settings = pytorch_settings.TrainSettings(
        model=setup.model,
        data=Path(),
        output=Path(),
        mode=mode,
        num_msa_layers=setup.layers,
        stream_head="conditioned",
        lora_layers=setup.layers if mode == "shared" else None,
    )
    model = build_model(settings)
    batch = collate(setup.items(model.causal_lm.config.vocab_size))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    seconds, before = [], Memory()
    for _ in range(setup.steps):
        began = time.perf_counter()
        n_gram_loss(model, batch, settings.alphas(settings.num_streams)).total.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "process": before.above()["process"]}


class Memory:
    """Memory of the process at the start, and at its peak since."""

    def __init__(self) -> None:
        mx.reset_peak_memory()
        self.process, self.counted = peak_bytes(), mx.get_active_memory()

    def above(self) -> dict[str, int]:
        """Bytes of the peak above the start: the process's, and those that MLX counts."""
        return {
            "process": peak_bytes() - self.process,
            "counted": mx.get_peak_memory() - self.counted,
        }


def one_run(way: str, model: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Run one of ``WAYS``: each step's seconds, and bytes above the start."""
    setup = Setup(Path(model), **sizes)
    trainer, _, variant = way.partition(", ")
    with tempfile.TemporaryDirectory() as scratch:
        if trainer == _MLX_LM:
            return mlx_lm_steps(setup, Path(scratch), variant == "checkpointed")
        mode: Literal["lossless", "shared"] = "shared" if "shared" in trainer else "lossless"
        if trainer.startswith("PyTorch "):
            return pytorch_steps(setup, mode)
        return our_steps(setup, Path(scratch), mode, variant)


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
    "counted by MLX, MB": "{counted_megabytes:.0f}",
    "of mlx_lm.lora  ": "{counted_share:.2f}",
}


def markdown(rows: list[dict[str, Any]], sizes: str, facts: dict[str, Any]) -> list[str]:
    """The lines of the report."""
    first = rows[0]  # that the others are compared with
    shown = [
        row
        | {
            "times": row["seconds"] / first["seconds"],
            "megabytes": row["process"] / 1e6,
            "share": row["process"] / first["process"],
            "counted_megabytes": row["counted"] and row["counted"] / 1e6,
            "counted_share": row["counted"] and row["counted"] / first["counted"],
        }
        for row in rows
    ]
    return [f"{measured_on(facts)}, {commit()}. {sizes}", "", *table(COLUMNS, shown)]


def main(
    model: Path | None = option(
        None, PATH, "Directory of a base in MLX format. Default: the demonstration model."
    ),
    random: str | None = option(None, TEXT, "Instead: a random Llama in 4 bits, such as 1.1B."),
    batch: int = option(8, integer(1), "Sequences of a step."),
    prompt: int = option(48, integer(1), "Prompt tokens of each."),
    completion: int = option(80, integer(1), "Completion tokens of each."),
    layers: int = option(4, integer(1), "Top layers that are trained."),
    steps: int = option(5, integer(2), "Of a run; the first is not counted."),
    rounds: int = option(3, integer(1), "Runs of each."),
    ways: str = option(";".join(WAYS), TEXT, "Trainers, by semicolons; all."),
    output: Path = OUTPUT,
) -> None:
    """Measure a training step of each trainer."""
    chosen = [way.strip() for way in ways.split(";")]
    for way in chosen:
        if way not in WAYS:
            raise UserError(f"--ways has {way!r}, expected some of {'; '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as scratch:
        model = model or demonstration.base_path()
        if random is not None:
            model = Path(scratch) / random
            in_own_process(make_base, model, random)
        sizes = {"layers": layers, "steps": steps, "batch": batch}
        sizes |= {"prompt": prompt, "completion": completion}
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in chosen}
        for way in track(chosen * rounds, "trainers"):
            first = way.startswith("PyTorch")
            runs[way].append(in_own_process(one_run, way, model, sizes, torch_first=first))
        held = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    rows = [summary(way, own, batch * completion) for way, own in runs.items()]
    facts = device.describe()
    about = (
        f"{random or model.name}, {held / 1e6:.0f} MB: {batch} sequences of {prompt} prompt and "
        f"{completion} completion tokens; the top {layers} layers are trained; gamma = 4, "
        "conditioned heads."
    )
    lines = markdown(rows, about, facts)
    name = f"training-cost{f'-random-{random}' if random else ''}-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": facts, "sizes": about, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
