"""Figures in the papers' shape: temperature, streams, MSA layers, on the demonstration model.

    python -m benchmarks.paper_figures                       # temperature and streams
    python -m benchmarks.paper_figures msa-layers --adapters runs/msa
    python -m benchmarks.paper_figures temperature streams msa-layers --adapters runs/msa

``temperature``: call reduction and speed at T = 1 over top-k, mlx_lm drawing with the same
sampler, by verify rule. ``streams``: full trees over width k and number of streams gamma, with and
without pruning. ``msa-layers``: quality, call reduction and speed over the number of MSA layers,
of adapters of one task; ``--adapters`` has a directory nsN for each, and without it the command
says how to train them.

Speed is the median over texts of (decode-only tokens/s) / (mlx_lm's on the same text).
Points go to ``benchmarks/results/figures/NAME-MACHINE.json`` as they are measured, so the same
command resumes; delete a file to measure anew. The PNG lies beside it.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from specstream_mlx.convert.to_mlx.adapter import convert_adapter

from specstream_mlx import DraftSettings, Sampling, UserError, demonstration
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.engine.verify.by_name import VerifyName
from specstream_mlx.terminal.errors import one_line_errors
from specstream_mlx.terminal.progress import track

from .figure_plot import check_matplotlib, draw
from .figure_points import Point, PointFile
from .report import RESULTS, Output, machine_suffix
from .runner import CHAIN, MLX_LM, Base, Mounted, Way, interleaved
from .texts import MODES, Chosen, Texts, TextSet, adapter_of, chosen_tasks, score

TOP_K = (1, 2, 5, 10, 20, 50, 0)  # 0: all tokens
VERIFIED: dict[str, tuple[VerifyName, DraftSettings]] = {
    "keyed, likely tree": ("keyed", LIKELY_DRAFTS),
    "keyed, chain": ("keyed", CHAIN),
    "rejection, chain": ("rejection", CHAIN),
}
GAMMAS = WIDTHS = (1, 2, 3, 4)
MSA_LAYERS = (1, 2, 4, 6, 8)

Groups = Mapping[str, Callable[[], list[Point]]]
"""What is measured together, by name."""


@dataclass(frozen=True)
class Figure:
    """How a figure is drawn.

    Attributes:
        title: its first line.
        x_label: of the horizontal axes.
        measures: label of the vertical axis by field of ``Point``.
    """

    title: str
    x_label: str
    measures: dict[str, str]


_RATES = {"call_reduction": "call reduction", "speedup": "tokens/s over mlx_lm"}
FIGURES = {
    "temperature": Figure("T = 1, by verify rule", "top-k of the sampler", _RATES),
    "streams": Figure("Full trees of gamma streams, greedy", "width k of the tree", _RATES),
    "msa-layers": Figure(
        "Adapters by number of MSA layers, greedy",
        "number of MSA layers",
        {"quality": "exact match"} | _RATES,
    ),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        tasks: of ``temperature``; the first one is that of ``streams``.
        origin: set of texts.
        items: texts for a point.
        quality_items: the same for ``msa-layers``.
        max_tokens: of a text.
        max_nodes: nodes that pruning keeps.
    """

    tasks: tuple[str, ...]
    origin: TextSet
    items: int
    quality_items: int
    max_tokens: int
    max_nodes: int


def groups_of(name: str, base: Base, sizes: Sizes, adapters: Mapping[int, Path]) -> Groups:
    """The groups of points of a figure."""
    if name == "temperature":
        return {
            f"{task}, {mode}, {top_k}": partial(_top_k, base, sizes, task, mode, top_k)
            for task in sizes.tasks
            for mode in MODES
            for top_k in TOP_K
        }
    if name == "streams":
        return {
            f"{mode}, {gamma}, {width}": partial(_full_trees, base, sizes, mode, gamma, width)
            for mode in MODES
            for gamma in GAMMAS
            for width in WIDTHS
        }
    return {
        f"{layers}": partial(_msa_layers, base, sizes, layers, adapter)
        for layers, adapter in adapters.items()
    }


def settings_of(name: str, sizes: Sizes, adapters: Mapping[int, Path]) -> dict[str, Any]:
    """What a figure's points depend on; a file with other settings is measured anew."""
    own = {
        "temperature": {
            "tasks": list(sizes.tasks),
            "items": sizes.items,
            "rules": list(VERIFIED),
        },
        "streams": {
            "tasks": [sizes.tasks[0]],
            "items": sizes.items,
            "max_nodes": sizes.max_nodes,
        },
        "msa-layers": {"layers": list(adapters), "items": sizes.quality_items},
    }
    return own[name] | {
        "max_tokens": sizes.max_tokens,
        "texts": Texts(sizes.origin, 1).facts()["texts"],
    }


def _top_k(base: Base, sizes: Sizes, task: str, mode: str, top_k: int) -> list[Point]:
    """T = 1 with one top-k, by verify rule."""
    mx.random.seed(0)
    sampler = Sampling(temp=1.0, top_k=top_k)
    mounted = base.mount(adapter_of(task, mode))
    ways = {
        name: mounted.ours(settings, sampler, verify)
        for name, (verify, settings) in VERIFIED.items()
    }
    label = {0: "all", 1: "1\n(greedy)"}.get(top_k, str(top_k))
    plain = mounted.mlx_lm(sampler)
    texts = Texts(sizes.origin, sizes.items)
    return _points(mounted, plain, ways, task, texts, f"{task}, {mode}", label)


def _full_trees(base: Base, sizes: Sizes, mode: str, gamma: int, width: int) -> list[Point]:
    """Full trees of gamma streams, with and without pruning, greedy."""
    task = sizes.tasks[0]
    mounted = base.mount(adapter_of(task, mode))
    tree = DraftSettings(num_streams=gamma, tree_width=width, tree_size=None)
    ways = {
        f"gamma {gamma}": mounted.ours(tree),
        f"gamma {gamma}, pruned": mounted.ours(replace(tree, max_nodes=sizes.max_nodes)),
    }
    texts = Texts(sizes.origin, sizes.items)
    panel = f"{task}, {mode}"
    return _points(mounted, mounted.mlx_lm(), ways, task, texts, panel, str(width))


def _msa_layers(base: Base, sizes: Sizes, layers: int, adapter: Path) -> list[Point]:
    """An adapter of SQL with so many MSA layers, greedy."""
    with tempfile.TemporaryDirectory() as scratch:
        mounted = base.mount(mlx_adapter(adapter, Path(scratch) / "adapter"))
        trained = mounted.model.streams.config.num_msa_layers
        if trained != layers:
            raise UserError(f"{adapter} has {trained} MSA layers, expected {layers} by its name")
        ways = {"likely tree": mounted.ours(LIKELY_DRAFTS), "chain": mounted.ours(CHAIN)}
        texts = Texts(sizes.origin, sizes.quality_items)
        return _points(
            mounted, mounted.mlx_lm(), ways, "sql", texts, "sql, shared", str(layers),
            with_quality=True,
        )  # fmt: skip


def _points(
    mounted: Mounted,
    plain: Way,
    ways: Mapping[str, Way],
    task: str,
    chosen: Texts,
    panel: str,
    x: str,
    with_quality: bool = False,
) -> list[Point]:
    """The points of some ways beside mlx_lm, on texts of a task."""
    texts = chosen.of_task(mounted.model, mounted.tokenizer, task)
    found = interleaved([text.prompt for text in texts], {MLX_LM: plain} | ways)
    points = []
    for name in ways:
        outputs = [run.text for run in found.first_runs(name)]
        _, quality = score(task, outputs, [text.answers for text in texts])
        figures = found.figures(name, MLX_LM)
        values = {key: figures[key] for key in ("call_reduction", "speedup", "nodes")}
        points.append(Point(panel, name, x, **values, quality=quality if with_quality else None))
    return points


def mlx_adapter(directory: Path, target: Path) -> Path:
    """``directory`` if it is an MLX adapter already, or else its conversion, ``target``."""
    config = json.loads((directory / "adapter_config.json").read_text())
    if "speculative_streaming" in config:
        return directory
    convert_adapter(directory, demonstration.base_path(), target)
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
        raise UserError(
            f"msa-layers found no adapters ns1, ns2, .. in --adapters {directory}, expected what "
            "the PyTorch trainer writes with --num-msa-layers 1, 2, .. to such directories"
        )
    return dict(sorted(found.items()))


def figures(names: Sequence[str], adapters: Path | None, sizes: Sizes, output: Path) -> list[Path]:
    """Measure what is missing of the named figures, draw them, and return the PNG files.

    Raises:
        UserError: an unknown name, no matplotlib or no adapters, before anything is measured.
    """
    for name in names:
        if name not in FIGURES:
            raise UserError(f"unknown figure {name!r}, expected some of {', '.join(FIGURES)}")
    check_matplotlib()
    by_layers = find_adapters(adapters) if "msa-layers" in names else {}
    base = Base(demonstration.base_path(), sizes.max_tokens)
    facts = base.facts()
    machine = f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']} on {facts['backend']}"
    written = []
    for name in dict.fromkeys(names):
        figure, settings = FIGURES[name], settings_of(name, sizes, by_layers)
        stem = f"{name}-{machine_suffix(facts)}"
        file = PointFile(output / f"{stem}.json", settings)
        groups = groups_of(name, base, sizes, by_layers)
        for group, measure in track(groups.items(), name):
            file.add(group, measure, facts)
        title = f"{figure.title}\n{machine}; {settings['items']} {settings['texts']} a point"
        written.append(output / f"{stem}.png")
        draw(file.points(), written[-1], title, figure.x_label, figure.measures)
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
    origin: Chosen = "test",
    items: Annotated[int, typer.Option(help="Texts for a point.", min=1)] = 6,
    quality_items: Annotated[int, typer.Option(help="The same for msa-layers.", min=1)] = 40,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text at most.", min=2)] = 96,
    max_nodes: Annotated[int, typer.Option(help="Nodes that pruning keeps.", min=2)] = 8,
    output: Output = RESULTS / "figures",
) -> None:
    """Measure and draw figures in the shape of the papers'."""
    written = figures(
        names or ["temperature", "streams"],
        adapters,
        Sizes(tuple(chosen_tasks(only)), origin, items, quality_items, max_tokens, max_nodes),
        output,
    )
    for path in written:
        print(path)


if __name__ == "__main__":
    typer.run(main)
