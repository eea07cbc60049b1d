"""The papers' figures as tables: shape of a full tree, number of MSA layers.

    python -m benchmarks.paper_figures                       # full trees of gamma streams
    python -m benchmarks.paper_figures msa-layers --adapters runs/msa

``streams``: full trees over width k and number of streams gamma, with and without pruning.
``msa-layers``: quality, call reduction and speed over the number of MSA layers, of adapters of one
task; ``--adapters`` has a directory nsN for each, and without it the command says how to train
them. Temperature has a benchmark of its own.

Speed is the median over texts of (decode-only tokens/s) / (mlx_lm's on the same text), greedy.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from specstream_mlx.convert.to_mlx.adapter import convert_adapter

from specstream_mlx import DraftSettings, UserError, demonstration
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.options.fields import option
from specstream_mlx.options.generation import most_tokens
from specstream_mlx.options.kinds import PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, table, write_report
from .runner import CHAIN, MLX_LM, Base, Drafts, Mounted, interleaved, streams_of
from .texts import (
    ORIGIN,
    WRITERS,
    Texts,
    TextSet,
    adapter_of,
    chosen_tasks,
    score,
    texts_a_task,
    writer_of,
)

GAMMAS = WIDTHS = (1, 2, 3, 4)

COLUMNS = {
    "task": "{task}",
    "writer": "{writer}",
    "streams": "{gamma}",
    "MSA layers": "{msa_layers}",
    "drafts": "{method}",
    "quality": "{metric} {quality:.2f}",
    "CR": "{call_reduction:.2f}",
    "nodes a call": "{nodes:.1f}",
    "speedup": "{speedup:.2f}x",
}


def full_trees(
    base: Base, task: str, texts: Texts, max_nodes: int
) -> Iterator[list[dict[str, Any]]]:
    """Rows of full trees of base and adapter, with and without pruning to ``max_nodes``."""
    shapes = [(writer, gamma, width) for writer in WRITERS for gamma in GAMMAS for width in WIDTHS]
    for writer, gamma, width in track(shapes, "full trees"):
        tree = DraftSettings(num_streams=gamma, tree_width=width, tree_size=None)
        ways = {
            f"width {width}": tree,
            f"width {width}, pruned": replace(tree, max_nodes=max_nodes),
        }
        yield measure(base.mount(adapter_of(task, writer)), ways, task, texts, gamma)


def by_msa_layers(
    base: Base, adapters: Mapping[int, Path], texts: Texts
) -> Iterator[list[dict[str, Any]]]:
    """Rows of adapters of SQL, by their number of MSA layers.

    Raises:
        UserError: an adapter has another number than its name says.
    """
    ways = {"likely tree": LIKELY_DRAFTS, "chain": CHAIN}
    for layers, adapter in track(adapters.items(), "MSA layers"):
        with tempfile.TemporaryDirectory() as scratch:
            mounted = base.mount(mlx_adapter(adapter, Path(scratch) / "adapter"))
            config = streams_of(mounted.model).config
            if config.num_msa_layers != layers:
                raise UserError(
                    f"{adapter} has {config.num_msa_layers} MSA layers, expected {layers} by its "
                    "name"
                )
            yield measure(mounted, ways, "sql", texts, config.num_streams)


def measure(
    mounted: Mounted, ways: Mapping[str, Drafts], task: str, chosen: Texts, gamma: int
) -> list[dict[str, Any]]:
    """The rows of some ways to draft beside mlx_lm, on texts of a task."""
    texts = chosen.of_task(mounted.model, mounted.tokenizer, task)
    prompts = [text.prompt for text in texts]
    decoders = {name: mounted.ours(drafts) for name, drafts in ways.items()}
    found = interleaved(prompts, {MLX_LM: mounted.mlx_lm()} | decoders)
    config = streams_of(mounted.model).config
    rows = []
    for name in ways:
        outputs = [run.text for run in found.first_runs(name)]
        metric, quality = score(task, outputs, [text.answers for text in texts])
        row = {"task": task, "writer": writer_of(mounted.model), "gamma": gamma, "method": name}
        row |= {"msa_layers": config.num_msa_layers, "metric": metric, "quality": quality}
        rows.append(row | found.figures(name, MLX_LM))
    return rows


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


def main(
    figure: Annotated[
        Literal["streams", "msa-layers"], typer.Argument(help="What is changed.")
    ] = "streams",
    adapters: Path | None = option(None, PATH, "Directory with ns1, ns2, .. for msa-layers."),
    task: str = option("sql", TEXT, "Whose texts full trees are drafted for."),
    origin: TextSet = ORIGIN,
    items: int = texts_a_task(6),
    max_tokens: int = most_tokens(96, least=2),
    max_nodes: int = option(8, integer(2), "Nodes that pruning keeps."),
    output: Path = OUTPUT,
) -> None:
    """Measure what the shape of a tree, or the number of MSA layers, brings."""
    (task,) = chosen_tasks(task)
    by_layers = find_adapters(adapters) if figure == "msa-layers" else {}
    base, texts = Base(demonstration.base_path(), max_tokens), Texts(origin, items)
    facts = base.facts() | texts.facts()
    about = f"{measured_on(facts)}; {facts['texts']}, {items} a line, at most {max_tokens} tokens."
    measured = (
        by_msa_layers(base, by_layers, texts)
        if by_layers
        else full_trees(base, task, texts, max_nodes)
    )
    rows: list[dict[str, Any]] = []
    text = ""
    for some in measured:
        rows += some
        lines = [about, "", *table(COLUMNS, rows)]
        name = f"figure-{figure}-{machine_suffix(facts)}"
        text = write_report(output, name, {"facts": facts, "rows": rows}, lines)
    print(text)


if __name__ == "__main__":
    program(main)()
