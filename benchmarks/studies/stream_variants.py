"""Ways to seed streams and to pass them through the MLP, trained alike and compared.

    python -m benchmarks.studies.stream_variants --work runs/adapters --minutes 5

Every variant trains lossless streams on the quantized demonstration base's own greedy output on
one task, for the same time, and is scored on greedy output on held-out prompts: how often each
stream's first choice is right, and the accepted length of a chain of them. The work directory is
that of ``train_adapters`` after its part ``base``. A finished variant is not trained again.
"""

import json
import random
from pathlib import Path
from typing import Annotated, Any

import typer
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.demo_model.train_adapters import (
    EMBEDDING_RATE,
    greedy_outputs,
    write_data,
)
from specstream_mlx.convert.pytorch.trainer import train
from specstream_mlx.convert.pytorch.training_settings import TrainSettings

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track

from ..report import RESULTS, Output, table, write_report

VARIANTS: dict[str, dict[str, Any]] = {
    "adapter": {"stream_mlp": "adapter"},
    "base+adapter": {"stream_mlp": "base+adapter"},
    "base": {"stream_mlp": "base"},
    "base+adapter, rank-8 linear init": {"stream_mlp": "base+adapter", "stream_init": "linear"},
    "base+adapter, value rotation": {
        "stream_mlp": "base+adapter",
        "stream_init": "value_rotation",
        "value_rotation_epsilon": 0.5,
    },
}


def task_data(work: Path, task: str, split: str, count: int) -> Path:
    """Greedy output of the quantized base on prompts of ``task``."""
    path = work / f"greedy-{task}-{split}.jsonl"
    if not path.exists():
        if split == "test":
            items = tasks.held_out(task, count)
        else:
            rng = random.Random(f"variants-{task}")
            items = [tasks.sample(rng, "train", task) for _ in range(count)]
        prompts = [tasks.instructed(item) for item in items]
        write_data(path, prompts, greedy_outputs(work / "base", prompts))
    return path


def score(output: Path) -> dict[str, Any]:
    """The held-out accuracy that ends a training log, and the steps taken."""
    last = json.loads((output / "log.jsonl").read_text().splitlines()[-1])
    return {"steps": last["step"], **last["held_out"]}


def markdown(results: dict[str, dict[str, Any]], facts: str) -> list[str]:
    """The lines of the report."""
    streams = len(next(iter(results.values()))["streams"])
    columns = {"variant": "{variant}", "steps": "{steps}"}
    columns |= {f"stream {j + 1}": f"{{streams[{j}]:.1%}}" for j in range(streams)}
    columns |= {"pruner": "{pruner:.1%}", "chain": "{chain:.2f}"}
    return [facts, "", *table(columns, [{"variant": name} | r for name, r in results.items()])]


@one_line_errors
def main(
    work: Annotated[Path, typer.Option(help="Work directory of train_adapters.")] = Path(
        "runs/adapters"
    ),
    minutes: Annotated[float, typer.Option(help="Training time of each variant.")] = 5.0,
    task: Annotated[str, typer.Option(help="The task.")] = "sql",
    items: Annotated[int, typer.Option(help="Training prompts.")] = 1500,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-2,
    only: Annotated[str, typer.Option("--variants", help="By semicolons; all.")] = "",
    output: Output = RESULTS,
) -> None:
    """Train and compare the variants of lossless streams."""
    data, valid = task_data(work, task, "train", items), task_data(work, task, "test", 100)
    results = {}
    for name in track([n.strip() for n in only.split(";") if n] or VARIANTS, "variants"):
        directory = work / "variants" / name.replace(", ", "-").replace(" ", "-")
        if not (directory / "adapter").exists():
            train(
                TrainSettings(
                    model=work / "expanded",
                    data=data,
                    valid_data=valid,
                    output=directory,
                    mode="lossless",
                    learning_rate=learning_rate,
                    embedding_learning_rate=EMBEDDING_RATE,
                    time_limit=minutes,
                    resume=(directory / "checkpoint.pt").exists(),
                    **VARIANTS[name],
                )
            )
        results[name] = score(directory)
    facts = (
        f"Lossless streams, task {task}, {minutes:g} minutes of training each, learning rate "
        f"{learning_rate:g}; text generator {tasks.generator_hash()}. First choice right on the "
        "base's greedy output for 100 held-out prompts, and accepted length of the chain."
    )
    print(write_report(output, "stream-variants", results, markdown(results, facts)))


if __name__ == "__main__":
    typer.run(main)
