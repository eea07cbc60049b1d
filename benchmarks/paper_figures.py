"""Figures in the shape of the papers': temperature, streams, MSA layers, on the bundled model.

    python -m benchmarks.paper_figures                       # temperature and streams
    python -m benchmarks.paper_figures msa-layers --adapters runs/msa
    python -m benchmarks.paper_figures temperature streams msa-layers --adapters runs/msa

``temperature``: call reduction and speed at T = 1 over top-k, mlx_lm drawing with the same
sampler, by verify rule. ``streams``: full trees over width k and number of streams gamma, with and
without pruning. ``msa-layers``: quality, call reduction and speed over the number of MSA layers,
of adapters of one task; ``--adapters`` has a directory nsN for each, and without it the command
says how to train them.

Speed is the median over held-out items of (decode-only tokens/s) / (mlx_lm's on the same item,
within seconds). Points go to ``benchmarks/results/figures/NAME-MACHINE.json`` as they are measured,
so the same command resumes; delete a file to measure anew. The PNG lies beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import UserError
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.hardware import device

from .figure_measuring import Measuring, Sizes, find_adapters
from .figure_plot import check_matplotlib, draw
from .figure_points import PointFile
from .plain_baseline import Bundled
from .result_files import RESULTS, machine_suffix
from .task_names import chosen_tasks

RATES = {"call_reduction": "call reduction", "speedup": "tokens/s over mlx_lm"}


@dataclass(frozen=True)
class Figure:
    """What is drawn.

    Attributes:
        title: its first line.
        x_label: of the horizontal axes.
        measures: label of the vertical axis by field of ``Point``.
    """

    title: str
    x_label: str
    measures: dict[str, str]


FIGURES = {
    "temperature": Figure("T = 1, by verify rule", "top-k of the sampler", RATES),
    "streams": Figure("Full trees of gamma streams, greedy", "width k of the tree", RATES),
    "msa-layers": Figure(
        "Adapters by number of MSA layers, greedy",
        "number of MSA layers",
        {"quality": "exact match"} | RATES,
    ),
}


def make(
    name: str, measure: Callable[[PointFile], None], settings: dict[str, Any], output: Path
) -> Path:
    """Measure what is missing of a figure, and draw it."""
    figure = FIGURES[name]
    stem = f"{name}-{machine_suffix(device.describe())}"
    file = PointFile(output / f"{stem}.json", settings)
    measure(file)
    facts = file.facts
    machine = (
        f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']} on {facts['backend']}; "
        f"{settings['items']} held-out items a point"
    )
    path = output / f"{stem}.png"
    draw(file.points(), path, f"{figure.title}\n{machine}", figure.x_label, figure.measures)
    return path


def figures(names: Sequence[str], adapters: Path | None, sizes: Sizes, output: Path) -> list[Path]:
    """The PNG files of the named figures.

    Raises:
        UserError: an unknown name, no matplotlib or no adapters, before anything is measured.
    """
    for name in names:
        if name not in FIGURES:
            raise UserError(f"unknown figure {name!r}, expected some of {', '.join(FIGURES)}")
    check_matplotlib()
    by_layers = find_adapters(adapters) if "msa-layers" in names else {}
    common = {"max_tokens": sizes.max_tokens, "generator": tasks.generator_hash()}
    with Progress(console=Console(stderr=True)) as progress:
        measuring = Measuring(Bundled(sizes.max_tokens), sizes, progress)
        runs: dict[str, tuple[Callable[[PointFile], None], dict[str, Any]]] = {
            "temperature": (
                measuring.temperature,
                {"tasks": list(sizes.tasks), "items": sizes.items},
            ),
            "streams": (
                measuring.streams,
                {"tasks": [sizes.tasks[0]], "items": sizes.items, "max_nodes": sizes.max_nodes},
            ),
            "msa-layers": (
                lambda file: measuring.msa_layers(file, by_layers),
                {"layers": list(by_layers), "items": sizes.quality_items},
            ),
        }
        written = []
        for name in dict.fromkeys(names):
            measure, settings = runs[name]
            written.append(make(name, measure, settings | common, output))
        return written


@one_line_errors
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Of {', '.join(FIGURES)}; the first two where none is named."),
    ] = None,
    adapters: Annotated[
        Path | None, typer.Option(help="Directory with ns1, ns2, .. for msa-layers.")
    ] = None,
    only: Annotated[
        str, typer.Option("--tasks", help="Tasks of temperature; streams takes the first.")
    ] = "sql,describe",
    items: Annotated[int, typer.Option(help="Held-out items for a point.", min=1)] = 6,
    quality_items: Annotated[int, typer.Option(help="The same for msa-layers.", min=1)] = 40,
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 96,
    max_nodes: Annotated[int, typer.Option(help="Nodes that pruning keeps.", min=2)] = 8,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS
    / "figures",
) -> None:
    """Measure and draw figures in the shape of the papers'."""
    written = figures(
        names or ["temperature", "streams"],
        adapters,
        Sizes(tuple(chosen_tasks(only)), items, quality_items, max_tokens, max_nodes),
        output,
    )
    for path in written:
        print(path)


if __name__ == "__main__":
    typer.run(main)
