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

import json
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import mlx.nn as nn
import typer
from rich.console import Console
from rich.progress import Progress
from specstream_mlx.convert.adapter_to_mlx import convert_adapter
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, Sampling, UserError, bundled, device
from specstream_mlx.draft_settings import DRAWN_DRAFTS, LIKELY_DRAFTS
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.verify_rules import VerifyName

from .figure_plot import check_matplotlib, draw
from .figure_points import Point, PointFile
from .metrics import score
from .paired_runs import Method, paired
from .plain_baseline import Bundled
from .result_files import RESULTS, machine_suffix
from .task_names import chosen_tasks
from .timed_runs import run_plain, run_streams

TOP_K = (1, 2, 5, 10, 20, 50, 0)  # 0: all tokens
VERIFIED: dict[str, tuple[VerifyName, DraftSettings]] = {
    "sample, likely tree": ("sample", LIKELY_DRAFTS),
    "sample, chain": ("sample", DRAWN_DRAFTS),
    "rejection, chain": ("rejection", DRAWN_DRAFTS),
}
GAMMAS = WIDTHS = (1, 2, 3, 4)
RATES = {"call_reduction": "call reduction", "speedup": "tokens/s over mlx_lm"}
MSA_LAYERS = (1, 2, 4, 6, 8)


@dataclass(frozen=True)
class Sizes:
    """How much is measured; a file measured with other sizes is begun anew.

    Attributes:
        tasks: of ``temperature``; the first one is that of ``streams``.
        items: held-out items for a point.
        quality_items: the same for ``msa-layers``.
        max_tokens: for an item.
        max_nodes: nodes that pruning keeps.
    """

    tasks: tuple[str, ...]
    items: int
    quality_items: int
    max_tokens: int
    max_nodes: int


class Measuring:
    """What every figure needs.

    Args:
        demo: the bundled base.
        sizes: how much is measured.
        progress: a line for each figure.
    """

    def __init__(self, demo: Bundled, sizes: Sizes, progress: Progress):
        self.demo, self.sizes, self.progress = demo, sizes, progress

    def prompts(self, task: str, items: int) -> list[list[int]]:
        """Of held-out items."""
        template = tasks.prompt_template(task)
        held_out = tasks.held_out(task, items)
        return [chat_prompt(self.demo.tokenizer, item.content, template) for item in held_out]

    def plain(self, model: nn.Module, sampler: Sampling | None = None) -> Method:
        """mlx_lm's decoding."""
        tokenizer, most = self.demo.tokenizer, self.sizes.max_tokens
        return lambda ids: run_plain(model, tokenizer, ids, most, sampler)

    def ours(
        self,
        settings: DraftSettings,
        sampler: Sampling | None = None,
        verify: VerifyName | None = None,
    ) -> Method:
        """Ours, with what is mounted when it runs."""
        demo, most = self.demo, self.sizes.max_tokens
        return lambda ids: run_streams(
            demo.model, demo.tokenizer, ids, most, settings, sampler, verify
        )


def adapters_of(task: str) -> dict[str, Path]:
    """The bundled lossless streams and the shared adapter of a task, by mode."""
    return {"lossless": bundled.streams_path(), "shared": bundled.adapter_path(task)}


def temperature(measuring: Measuring, file: PointFile) -> None:
    """T = 1 over top-k, by task, mode and verify rule."""
    panels = [(task, mode) for task in measuring.sizes.tasks for mode in ("lossless", "shared")]
    bar = measuring.progress.add_task("temperature", total=len(panels) * len(TOP_K))
    for task, mode in panels:
        for top_k in TOP_K:

            def measure(task: str = task, mode: str = mode, top_k: int = top_k) -> list[Point]:
                mx.random.seed(0)
                sampler = Sampling(temp=1.0, top_k=top_k)
                plain = measuring.plain(measuring.demo.mount(adapters_of(task)[mode]), sampler)
                methods = {
                    name: measuring.ours(settings, sampler, verify)
                    for name, (verify, settings) in VERIFIED.items()
                }
                prompts = measuring.prompts(task, measuring.sizes.items)
                _, found = paired(prompts, plain, methods, lambda: None)
                label = {0: "all", 1: "1\n(greedy)"}.get(top_k, top_k)
                return [
                    Point.of(f"{task}, {mode}", name, label, one) for name, one in found.items()
                ]

            file.add(f"{task}, {mode}, {top_k}", measure, measuring.demo.facts())
            measuring.progress.advance(bar)


def streams(measuring: Measuring, file: PointFile) -> None:
    """Full k-ary trees of gamma streams, with and without pruning, greedy."""
    task = measuring.sizes.tasks[0]
    bar = measuring.progress.add_task("streams", total=2 * len(GAMMAS) * len(WIDTHS))
    pruning = {"": None, ", pruned": measuring.sizes.max_nodes}
    for mode, adapter in adapters_of(task).items():
        for gamma in GAMMAS:
            for width in WIDTHS:

                def measure(
                    mode: str = mode, adapter: Path = adapter, gamma: int = gamma, k: int = width
                ) -> list[Point]:
                    plain = measuring.plain(measuring.demo.mount(adapter))
                    methods = {}
                    for name, kept in pruning.items():
                        tree = DraftSettings(gamma, k, tree_size=None, max_nodes=kept)
                        methods[f"gamma {gamma}{name}"] = measuring.ours(tree)
                    prompts = measuring.prompts(task, measuring.sizes.items)
                    _, found = paired(prompts, plain, methods, lambda: None)
                    return [
                        Point.of(f"{task}, {mode}", name, k, one) for name, one in found.items()
                    ]

                file.add(f"{mode}, {gamma}, {width}", measure, measuring.demo.facts())
                measuring.progress.advance(bar)


def msa_layers(measuring: Measuring, file: PointFile, adapters: dict[int, Path]) -> None:
    """Adapters of SQL by their number of MSA layers, greedy."""
    bar = measuring.progress.add_task("msa-layers", total=len(adapters))
    items = measuring.sizes.quality_items
    for layers, adapter in adapters.items():

        def measure(layers: int = layers, adapter: Path = adapter) -> list[Point]:
            with tempfile.TemporaryDirectory() as scratch:
                usable = mlx_adapter(adapter, Path(scratch) / "adapter")
                plain = measuring.plain(measuring.demo.mount(usable))
                trained = measuring.demo.model.streams.config.num_msa_layers
                if trained != layers:
                    raise UserError(
                        f"{adapter} has {trained} MSA layers, expected {layers} by its name"
                    )
                methods = {
                    "likely tree": measuring.ours(LIKELY_DRAFTS),
                    "chain": measuring.ours(DRAWN_DRAFTS),
                }
                _, found = paired(measuring.prompts("sql", items), plain, methods, lambda: None)
            targets = [item.target for item in tasks.held_out("sql", items)]
            return [
                Point.of(
                    "sql, shared", name, layers, one,
                    score("sql", [run.text for run in one.runs], targets)[1],
                )
                for name, one in found.items()
            ]  # fmt: skip

        file.add(f"{layers}", measure, measuring.demo.facts())
        measuring.progress.advance(bar)


def mlx_adapter(directory: Path, target: Path) -> Path:
    """``directory`` if it is an MLX adapter already, or else its conversion, ``target``."""
    config = json.loads((directory / "adapter_config.json").read_text())
    if "speculative_streaming" in config:
        return directory
    convert_adapter(directory, bundled.base_path(), target)
    return target


def find_adapters(directory: Path | None) -> dict[int, Path]:
    """The adapter directories in ``directory/nsN`` by N.

    Raises:
        UserError: there are none; the sentence says how to train them.
    """
    found: dict[int, Path] = {}
    for path in directory.glob("ns*") if directory else ():
        inner = (path / "sql" / "adapter", path / "adapter", path)
        usable = [one for one in inner if (one / "adapter_config.json").exists()]
        if usable and path.name[2:].isdigit():
            found[int(path.name[2:])] = usable[0]
    if not found:
        where = directory or Path("runs/msa")
        loop = (
            f"for n in {' '.join(map(str, MSA_LAYERS))}; do python -m "
            "specstream_mlx.convert.demo_model.train_adapters --base runs/base/model --work "
            f"{shlex.quote(str(where))}/ns$n --shared-msa-layers $n --minutes 8 base sql; done"
        )
        raise UserError(
            f"msa-layers found no adapters ns1, ns2, .. in --adapters {where}, train them with: "
            f"{loop}"
        )
    return dict(sorted(found.items()))


FIGURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "temperature": ("T = 1, top-k sampling, by verify rule", "top-k", RATES),
    "streams": ("Full trees of gamma streams, width k, with and without pruning", "k", RATES),
    "msa-layers": (
        "Adapters by number of MSA layers, trained alike",
        "number of MSA layers",
        {"quality": "exact match"} | RATES,
    ),
}


def make(
    name: str,
    measure: Callable[[PointFile], None],
    sizes: dict[str, Any],
    output: Path,
) -> Path:
    """Measure what is missing of a figure, and draw it."""
    title, x_label, measures = FIGURES[name]
    stem = output / f"{name}-{machine_suffix(device.describe())}"
    file = PointFile(stem.with_suffix(".json"), sizes)
    measure(file)
    facts = file.facts
    machine = (
        f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']} on {facts['backend']}; "
        f"{sizes['items']} held-out items a point"
    )
    draw(file.points(), stem.with_suffix(".png"), f"{title}\n{machine}", x_label, measures)
    return stem.with_suffix(".png")


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
    try:
        written = figures(
            names or ["temperature", "streams"],
            adapters,
            Sizes(tuple(chosen_tasks(only)), items, quality_items, max_tokens, max_nodes),
            output,
        )
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    for path in written:
        print(path)


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
        asked: dict[str, tuple[Callable[[PointFile], None], dict[str, Any]]] = {
            "temperature": (
                lambda file: temperature(measuring, file),
                {"tasks": list(sizes.tasks), "items": sizes.items},
            ),
            "streams": (
                lambda file: streams(measuring, file),
                {"tasks": [sizes.tasks[0]], "items": sizes.items, "max_nodes": sizes.max_nodes},
            ),
            "msa-layers": (
                lambda file: msa_layers(measuring, file, by_layers),
                {"layers": list(by_layers), "items": sizes.quality_items},
            ),
        }
        return [
            make(name, asked[name][0], asked[name][1] | common, output)
            for name in dict.fromkeys(names)
        ]


if __name__ == "__main__":
    typer.run(main)
