"""``specstream-mlx tune``: what rows cost here, what is accepted, and how to draft therefore."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..hardware import blas
from . import reporting
from .groups import grouped
from .options import KVCacheOptions, ModelOptions
from .parsing import at_least

if TYPE_CHECKING:
    from rich.console import Console

    from ..autotune.adaptive import Arm
    from ..autotune.tuning import TuningResult

MEASURING = "Measuring how to draft on this machine, once; see specstream-mlx tune"


@grouped(panels=False)
def tune(
    *,
    model: ModelOptions,
    prompts: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help='Texts to measure acceptance on: one a line, or objects {"prompt": ..}. Default: '
            "the adapter's calibration.jsonl, or general ones.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        Option(
            "--max-tokens",
            "-m",
            parser=at_least(2),
            metavar="N",
            help="Tokens to generate from each text, at most. Default: 64.",
        ),
    ] = None,
    kv_cache: KVCacheOptions,
    again: Annotated[
        bool, Option("--again", help="Measure even if this was measured before.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure what a step costs here and what is accepted, and choose how to draft.

    [bold]generate[/bold] does so by itself when it first meets a model, an adapter or a machine;
    the result is kept in the user's cache. --prompts and --max-tokens measure again, and what they
    find is what generate uses from then on.

    [bold]Example:[/bold] specstream-mlx tune --adapter sql
    """
    source = model.source()

    from ..autotune.calibration import read_prompts
    from ..autotune.tuning import tune as run
    from ..drafting.drafter import describe
    from ..hardware import device

    texts = prompts and read_prompts(prompts)
    if device.slow_blas():
        reporting.note(blas.OPENBLAS_HINT)
    loaded, tokenizer = source.load()
    result = run(
        loaded,
        tokenizer,
        texts,
        max_tokens=max_tokens,
        again=again,
        on_measuring=lambda: reporting.note("Measuring; nothing else should keep the machine busy"),
        quantization=kv_cache.quantization(),
    )
    if as_json:
        values = {"model": source.model_name, "adapter": source.adapter_name, "mode": loaded.mode}
        values |= {"chosen": describe(result.settings, loaded.streams is not None)}
        values |= {"reason": result.reason()} | result.to_json()
        print(json.dumps(values, indent=2))
        return
    _show(result, loaded.streams is not None)


def _show(result: "TuningResult", streams: bool) -> None:
    from rich.console import Console

    from ..drafting.drafter import describe

    console = Console(highlight=False)
    _show_costs(console, result)
    if result.acceptance is not None:
        _show_acceptance(console, result.acceptance)
    _show_ranking(console, result, streams)
    console.print(f"\nMeasured in {result.seconds:.1f} s on {result.texts} texts, ", end="")
    console.print(f"{result.tokens} tokens.")
    console.print(f"Chosen: {describe(result.settings, streams)}")
    console.print(result.reason())


def _show_costs(console: "Console", result: "TuningResult") -> None:
    from rich.table import Table

    costs = result.costs.table
    table = Table(title="Milliseconds of a step, by where the streams run", title_justify="left")
    table.add_column("tree nodes", justify="right")
    for place in costs:
        heading = {"none": "nowhere", "beside": "beside all"}.get(place, place)
        table.add_column(heading, justify="right")
    for nodes in sorted({nodes for points in costs.values() for nodes, _ in points}):
        found = [dict(points).get(nodes) for points in costs.values()]
        table.add_row(str(nodes), *("" if s is None else f"{1e3 * s:.1f}" for s in found))
    console.print(table)
    console.print(f"A step without drafts takes {1e3 * result.costs.plain:.1f} ms.\n")


def _show_acceptance(console: "Console", rates: tuple[tuple[float, ...], ...]) -> None:
    from rich.table import Table

    table = Table(
        title="Right candidates by depth and rank, where the tokens before were candidates too",
        title_justify="left",
    )
    table.add_column("depth")
    for rank in range(1, len(rates[0]) + 1):
        table.add_column(str(rank), justify="right")
    for depth, row in enumerate(rates, start=1):
        table.add_row(str(depth), *(f"{rate:.3f}" for rate in row))
    console.print(table)


def _show_ranking(console: "Console", result: "TuningResult", streams: bool) -> None:
    from rich.table import Table

    table = Table(title="The best of all that was tried", title_justify="left")
    table.add_column("drafts")
    table.add_column("how", overflow="fold")
    for name in ("tokens/s", "call reduction", "nodes"):
        table.add_column(name, justify="right")
    for arm in result.ranking:
        name = f"[bold]{arm.kind}[/bold]" if arm == result.chosen else arm.kind
        cells = (f"{arm.rate:.1f}", f"{arm.tokens:.2f}", f"{arm.nodes:.1f}")
        table.add_row(name, _how(arm, streams), *cells)
    console.print(table)


def _how(arm: "Arm", streams: bool) -> str:
    """The settings, and where the streams run in case one may choose."""
    from ..drafting.drafter import describe

    text = describe(arm.settings, streams)
    every = not arm.settings.deferred and arm.settings.stream_nodes is None
    if arm.kind in ("streams", "hybrid") and every:
        text += ", streams beside the nodes"
    return text
