"""Streams and prompt lookup in one tree, against either alone, on held-out items of each task.

    python -m benchmarks.hybrid
    python -m benchmarks.hybrid --items 5 --tasks proofread,describe

The three draft under the same budget: ``8 nodes``, the likeliest of a step, and ``likely``, of
these only what is likelier than the threshold of ``LIKELY_DRAFTS``. Every item is decoded by all
of them in turn, greedily, within seconds of mlx_lm's plain decoding of the same item. In lossless
mode lookup alone runs no stream; in shared mode all streams run beside every node, since the
adapter's text depends on them. All outputs must be the same: mlx_lm's in lossless mode, those of
one token a step in shared mode. The Markdown table and the JSON file go to ``benchmarks/results``.

A cell: ``CR`` = target calls of plain decoding / target calls; nodes = drafted tokens that a call
tests; speed = median over items of (decode-only tokens/s) / (mlx_lm's on the same item).
"""

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, bundled
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.prompts import chat_prompt

from .paired_runs import Method, paired
from .plain_baseline import Bundled
from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .task_names import chosen_tasks
from .timed_runs import run_plain, run_streams

BUDGETS = {"8 nodes": DraftSettings(), "likely": LIKELY_DRAFTS}
DRAFTERS: dict[str, dict[str, Any]] = {
    "streams": {},
    "lookup": {"lookup": True, "num_streams": 0},
    "hybrid": {"lookup": True},
}
EQUAL = 0.99
"""Of the better one's call reduction; less is worse."""


@dataclass(frozen=True)
class Cell:
    """One drafter under one budget on one task."""

    task: str
    mode: str
    budget: str
    drafter: str
    call_reduction: float
    nodes: float
    speedup: float
    same_output: int
    items: int


def measure(
    demo: Bundled, task: str, adapter: Path, items: int, max_tokens: int, progress: Progress
) -> list[Cell]:
    """All drafters under all budgets on the held-out items of ``task``, interleaved."""
    plain = demo.mount(adapter)
    mode = demo.model.mode
    template = tasks.prompt_template(task)
    prompts = [
        chat_prompt(demo.tokenizer, item.content, template) for item in tasks.held_out(task, items)
    ]

    def drafting(settings: DraftSettings) -> Method:
        return lambda ids: run_streams(demo.model, demo.tokenizer, ids, max_tokens, settings)

    methods = {
        (budget, drafter): drafting(replace(settings, **fields))
        for budget, settings in BUDGETS.items()
        for drafter, fields in DRAFTERS.items()
    }
    bar = progress.add_task(f"{task} ({mode})", total=len(prompts))
    expected, found = paired(
        prompts,
        lambda ids: run_plain(plain, demo.tokenizer, ids, max_tokens),
        methods,
        lambda: progress.advance(bar),
    )
    if mode == "shared":  # its text depends on the streams, which mlx_lm does not run
        expected = [drafting(DraftSettings(speculation=False))(ids) for ids in prompts]
    cells = []
    for (budget, drafter), one in found.items():
        same = sum(a.tokens == b.tokens for a, b in zip(one.runs, expected, strict=True))
        values = one.call_reduction, one.nodes, one.speedup, same, len(prompts)
        cells.append(Cell(task, mode, budget, drafter, *values))
    return cells


def hybrid_over_best(cells: list[Cell]) -> float:
    """The hybrid's call reduction over the better one's of the others, same task and budget."""
    reductions = {cell.drafter: cell.call_reduction for cell in cells}
    return reductions.pop("hybrid") / max(reductions.values())


def lines_of(cells: list[Cell]) -> list[list[Cell]]:
    """The cells of each mode, budget and task."""
    lines: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        lines.setdefault((cell.mode, cell.budget, cell.task), []).append(cell)
    return [lines[key] for key in sorted(lines, key=lambda key: key[:2])]


def markdown(cells: list[Cell], facts: dict[str, Any]) -> str:
    """The result table."""
    lines = lines_of(cells)
    shares = [hybrid_over_best(line) for line in lines]
    same, runs = (sum(getattr(cell, name) for cell in cells) for name in ("same_output", "items"))
    text = [
        f"{measured_on(facts)}; mlx_lm on {facts['plain_weights']} weights; text generator "
        f"{facts['generator']}; {facts['items']} held-out items a task. CR (nodes a call, "
        f"tokens/s over mlx_lm's). {same} of {runs} outputs are those of plain decoding.",
        "",
        f"Hybrid against the better of the two alone, in CR: best or equal (at least {EQUAL}) in "
        f"{sum(share >= EQUAL for share in shares)} of {len(shares)} lines, "
        f"{min(shares):.3f} to {max(shares):.3f}, mean {statistics.mean(shares):.3f}.",
        "",
        "| task | mode | drafts | streams alone | lookup alone | hybrid | hybrid / better one |",
        "|---|---|---|---|---|---|---|",
    ]
    for line, share in zip(lines, shares, strict=True):
        values = " | ".join(
            f"{cell.call_reduction:.2f} ({cell.nodes:.1f}, {cell.speedup:.2f}x)" for cell in line
        )
        first = line[0]
        text.append(f"| {first.task} | {first.mode} | {first.budget} | {values} | {share:.3f} |")
    return "\n".join(text) + "\n"


@one_line_errors
def main(
    items: Annotated[int, typer.Option(help="Held-out items per task.", min=1)] = 10,
    only: Annotated[str, typer.Option("--tasks", help="Comma-separated task names.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 160,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Compare hybrid drafts with streams alone and lookup alone on the bundled model."""
    chosen = chosen_tasks(only)
    demo = Bundled(max_tokens)
    cells: list[Cell] = []
    with Progress(console=Console(stderr=True)) as progress:
        for task in chosen:
            for adapter in (bundled.streams_path(), bundled.adapter_path(task)):
                cells += measure(demo, task, adapter, items, max_tokens, progress)
    facts = demo.facts() | {"items": items}
    summary = {"facts": facts, "cells": [asdict(cell) for cell in cells]}
    write_results(output, f"hybrid-{machine_suffix(facts)}", summary, markdown(cells, facts))
    different = [cell for cell in cells if cell.same_output < cell.items]
    if different and device.backend() == "cpu":  # on Metal a near-tie may end otherwise
        first = different[0]
        typer.echo(
            f"error: {first.task} ({first.mode}), {first.drafter}, {first.budget}: "
            f"{first.items - first.same_output} of {first.items} outputs differ from plain "
            "decoding, expected none",
            err=True,
        )
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
