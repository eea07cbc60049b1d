"""Tuned drafting against an exhaustive sweep, the paper's fixed trees, and mlx_lm.

    python -m benchmarks.tuned                                  # all tasks, both modes
    python -m benchmarks.tuned --no-sweep --bits 4 --weights packed
    python -m benchmarks.tuned --no-sweep --random-streams
    python -m benchmarks.tuned --modes shared --best-of benchmarks/results/tuned-shared-X.json

For each task and mode the tuner measures on training texts. The sweep then decodes a held-out text
with everything that the tuner may choose, and two more with the best of that; the best few and the
paper's trees decode ``--items`` others, interleaved, which decides what is fastest among them. That
one was lucky with the texts and the clock, so as many further texts compare it with the tuned
drafting and ``mlx_lm``: ``--rounds`` times in random order, of which each text's median counts, the
machine's drift taken out. Only this last part is reported. ``--no-sweep`` leaves out the sweep, and
``--best-of`` takes what an earlier run found fastest here. With MLX's reference BLAS:

    python -c "import mlx.core, runpy; runpy.run_module('benchmarks.tuned', run_name='__main__')" \\
        --no-sweep --name reference-blas
"""

import json
import math
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import mlx.nn as nn
import typer
from mlx.utils import tree_map
from mlx_lm.utils import dequantize_model
from rich.console import Console
from rich.progress import track
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import UserError, bundled, load, tune
from specstream_mlx.autotune.grid import drafts, placed
from specstream_mlx.autotune.tuning import TuningResult
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.drafting.settings import LIKELY_DRAFTS, DraftSettings
from specstream_mlx.hardware import device
from specstream_mlx.loading import SpeculativeModel
from specstream_mlx.prompts import chat_prompt

from .paired_runs import Method, repeated
from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .speedup import CHAIN, LIKELY_CHAIN, TREE
from .task_names import chosen_tasks
from .timed_runs import TimedRun, call_reduction, run_plain, run_streams

PAPER = {
    "chain": CHAIN,
    "tree": TREE,
    "likely chain": LIKELY_CHAIN,
    "likely tree": LIKELY_DRAFTS,
}
"""The rows of ``benchmarks.speedup``, streams deferred where they may be."""

FINALISTS = 3

PLACED = {"none": "", "deferred": ", streams deferred", "beside": ", streams beside every node"}


@dataclass(frozen=True)
class Decision:
    """What is fastest for one task in one mode, on texts of their own.

    Attributes:
        best: of the sweep and of ``PAPER``; ``None`` where there was no sweep.
        best_of_paper: of ``PAPER``.
        speedups: over mlx_lm on these texts.
    """

    best: str | None
    best_of_paper: str
    speedups: dict[str, float]


@dataclass(frozen=True)
class Row:
    """One task in one mode.

    Attributes:
        task, mode: which.
        tuned: what the tuner chose.
        plain_tps: tokens/s of mlx_lm.
        decision: what it is compared with.
        speedups: of ``tuned`` and of these over mlx_lm, on other texts.
        call_reductions: the same methods'.
        identical: texts of the tuned runs that equal mlx_lm's, in lossless mode all.
        texts: compared.
    """

    task: str
    mode: str
    tuned: TuningResult
    plain_tps: float
    decision: Decision
    speedups: dict[str, float]
    call_reductions: dict[str, float]
    identical: int
    texts: int

    @property
    def over_sweep(self) -> float | None:
        """Tuned speed over the best one's, or over plain decoding's where that is faster."""
        best = self.decision.best
        return best and self.speedups["tuned"] / max(1.0, self.speedups[best])

    @property
    def over_paper(self) -> float:
        """Tuned speed over that of the best of ``PAPER``."""
        return self.speedups["tuned"] / self.speedups[self.decision.best_of_paper]

    def values(self) -> dict[str, Any]:
        """The row of the JSON file."""
        return {
            "task": self.task,
            "mode": self.mode,
            "chosen": self.tuned.chosen.kind,
            "settings": self.tuned.settings.describe(),
            "stream_nodes": self.tuned.settings.stream_nodes,
            "deferred": self.tuned.settings.deferred,
            "predicted_speedup": round(self.tuned.chosen.rate / self.tuned.plain.rate, 3),
            "plain_tps": round(self.plain_tps, 1),
            "speedups": self.speedups,
            "speedups_that_decided": self.decision.speedups,
            "best_of_sweep": self.decision.best,
            "best_of_paper": self.decision.best_of_paper,
            "call_reductions": self.call_reductions,
            "tuned_over_best_of_sweep": self.over_sweep and round(self.over_sweep, 3),
            "tuned_over_best_of_paper": round(self.over_paper, 3),
            "same_text_as_plain": self.identical,
            "texts": self.texts,
        }


def grid(model: SpeculativeModel) -> dict[str, DraftSettings]:
    """Everything that the tuner may choose among, and the paper's trees."""
    streams = model.streams.config
    found = {"sweep: plain": DraftSettings(speculation=False)}
    for kind, settings in drafts(streams, model.config["vocab_size"]):
        for moved in placed(settings, streams):
            name = f"sweep: {kind}, {moved.describe()}"
            if streams.mode == "lossless" and moved.stream_nodes is None:
                name += PLACED[moved.placement(streams)]
            found[name] = moved
    return found


def swept(
    model: SpeculativeModel, prompts: Sequence[list[int]], method: Any
) -> dict[str, DraftSettings]:
    """The fastest few of the grid: first on one text, then a sixth of it on the others."""
    candidates = grid(model)
    for texts, kept in ((prompts[:1], len(candidates) // 6), (prompts[1:], FINALISTS)):
        methods = {name: method(settings) for name, settings in candidates.items()}
        best = sorted(methods, key=repeated(texts, methods, 1).rate, reverse=True)[:kept]
        candidates = {name: candidates[name] for name in best}
    return candidates


def decide(
    model: SpeculativeModel,
    prompts: Sequence[list[int]],
    sweep_prompts: Sequence[list[int]],
    method: Callable[[DraftSettings], Method],
    plain: Method,
) -> Decision:
    """Find what is fastest; without ``sweep_prompts`` there is no sweep."""
    methods = {name: method(settings) for name, settings in PAPER.items()}
    if sweep_prompts:
        best = swept(model, sweep_prompts, method)
        methods |= {name: method(settings) for name, settings in best.items()}
    everything = {"mlx_lm": plain} | methods
    repeated(prompts[:1], everything, 1)  # a warm-up
    found = repeated(prompts, everything, 1)
    speedups = {name: round(found.rate(name) / found.rate("mlx_lm"), 3) for name in methods}
    return Decision(
        max(speedups, key=speedups.__getitem__) if sweep_prompts else None,
        max(PAPER, key=speedups.__getitem__),
        speedups,
    )


def decided_before(path: Path, jobs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Decision]:
    """What an earlier run found for ``jobs``, modes and tasks.

    Raises:
        UserError: ``path`` is no result of this benchmark, or has no sweep of one of these.
    """
    try:
        rows = json.loads(path.read_text())["rows"]
        found = {
            (row["mode"], row["task"]): Decision(
                row["best_of_sweep"], row["best_of_paper"], row["speedups_that_decided"]
            )
            for row in rows
            if row["best_of_sweep"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--best-of {path} is not a JSON file of benchmarks.tuned") from None
    for mode, task in jobs:
        if (mode, task) not in found:
            raise UserError(f"--best-of {path} has no sweep of {task}, {mode}, expected one")
    return found


def measure(
    model: SpeculativeModel,
    tokenizer: Any,
    task: str,
    items: int,
    rounds: int,
    max_tokens: int,
    sweep: bool,
    decision: Decision | None = None,
) -> Row:
    """Tune for one task, and compare; with ``decision`` nothing is swept."""
    shared = model.mode == "shared"
    held_out = tasks.held_out(task, 2 * items + 3)
    contents = [item.content if shared else tasks.instructed(item) for item in held_out]
    prompts = [chat_prompt(tokenizer, text, model.prompt_template) for text in contents]
    tuned = tune(model, tokenizer, None if shared else training_texts(task), again=True)

    def plain(ids: Sequence[int]) -> TimedRun:
        return run_plain(model.model, tokenizer, ids, max_tokens)

    def method(settings: DraftSettings | None) -> Method:
        """``None``: tuned."""
        return lambda ids: run_streams(
            model, tokenizer, ids, max_tokens, settings or tuned.drafting()
        )

    if decision is None:
        sweep_prompts = prompts[2 * items :] if sweep else []
        decision = decide(model, prompts[:items], sweep_prompts, method, plain)
    known = PAPER | grid(model)
    names = {decision.best_of_paper, decision.best} - {None}
    if unknown := names - known.keys():
        raise UserError(f"--best-of has {min(unknown)!r}, expected something that can be chosen")
    compared = {"tuned": method(None), "mlx_lm": plain}
    compared |= {name: method(known[name]) for name in sorted(names)}
    texts = prompts[items : 2 * items]
    repeated(texts[:1], compared, 1)  # a warm-up
    found = repeated(texts, compared, rounds)
    plain_tps = found.rate("mlx_lm")
    ours = [name for name in compared if name != "mlx_lm"]
    return Row(
        task,
        model.mode,
        tuned,
        plain_tps,
        decision,
        {name: round(found.rate(name) / plain_tps, 3) for name in ours},
        {name: round(call_reduction(list(chain(*found.runs[name]))), 3) for name in ours},
        same_texts(*([runs[0] for runs in found.runs[name]] for name in ("tuned", "mlx_lm"))),
        len(texts),
    )


def training_texts(task: str, count: int = 16) -> list[str]:
    """What the base's streams are tuned on for a task: instructed items of the training split."""
    rng = random.Random(f"tuned-{task}")
    return [tasks.instructed(tasks.sample(rng, "train", task)) for _ in range(count)]


def same_texts(runs: Sequence[TimedRun], baseline: Sequence[TimedRun]) -> int:
    """How many texts equal the baseline's."""
    return sum(run.tokens == plain.tokens for run, plain in zip(runs, baseline, strict=True))


def quantize(model: SpeculativeModel, bits: int) -> None:
    """The same model in other bits, packed, in float32 scales."""
    model.model = dequantize_model(model.model)
    nn.quantize(model.model, 64, bits)
    model.config = model.config | {"quantization": {"group_size": 64, "bits": bits}}
    mx.eval(model.model.parameters())


def randomize(model: SpeculativeModel) -> None:
    """Streams as if nobody had trained them."""
    mx.random.seed(0)
    values = tree_map(
        lambda x: 0.02 * mx.random.normal(x.shape, x.dtype), model.streams.parameters()
    )
    model.streams.update(values)
    mx.eval(model.streams.parameters())


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def markdown(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """The table."""
    lines = [
        f"{measured_on(facts)}; weights {facts['weights']}, streams {facts['streams']}; "
        f"{facts['items']} held-out texts a task, {facts['rounds']} times each, greedy. "
        "Speedups over mlx_lm on the same model.",
        "",
        "| task | mode | tuned to | tuned | CR | best of the sweep | its speed | tuned / best | "
        "best fixed tree of the paper's | its speed | tuned / fixed | mlx_lm, tokens/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        best, paper = row.decision.best, row.decision.best_of_paper
        swept_cells = "| |"
        if best:
            swept_cells = (
                f"{best.removeprefix('sweep: ')} | {row.speedups[best]:.2f}x | {row.over_sweep:.2f}"
            )
        lines.append(
            f"| {row.task} | {row.mode} | {row.tuned.chosen.kind}, "
            f"{row.tuned.settings.describe()} | {row.speedups['tuned']:.2f}x | "
            f"{row.call_reductions['tuned']:.2f} | {swept_cells} | {paper} | "
            f"{row.speedups[paper]:.2f}x | {row.over_paper:.2f} | {row.plain_tps:.0f} |"
        )
    for mode in dict.fromkeys(row.mode for row in rows):
        chosen = [row for row in rows if row.mode == mode]
        tuned = [row.speedups["tuned"] for row in chosen]
        text = (
            f"Geometric means, {mode}: tuned {geometric_mean(tuned):.2f}x, tuned / best fixed tree "
            f"{geometric_mean([row.over_paper for row in chosen]):.2f}"
        )
        if all(row.decision.best for row in chosen):
            over = [row.over_sweep for row in chosen]
            text += (
                f", tuned / best of the sweep {geometric_mean(over):.2f} (least {min(over):.2f})"
            )
        lines += ["", f"{text}; the least tuned / plain {min(tuned):.2f}."]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(
    items: Annotated[
        int,
        typer.Option(help="Held-out texts of each task that decide, and that compare.", min=1),
    ] = 12,
    rounds: Annotated[int, typer.Option(help="Runs of each text that compares.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text at most.", min=2)] = 96,
    only: Annotated[
        str, typer.Option("--tasks", help="Comma-separated tasks; all by default.")
    ] = "",
    modes: Annotated[str, typer.Option(help="lossless, shared, or both.")] = "lossless,shared",
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Run the whole grid too.")
    ] = True,
    best_of: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead: what this JSON file of a sweep has as best."),
    ] = None,
    weights: Annotated[str, typer.Option(help="auto, packed or expanded.")] = "auto",
    bits: Annotated[int, typer.Option(help="Quantize the base again, packed.")] = 8,
    random_streams: Annotated[
        bool, typer.Option("--random-streams", help="Untrained streams.")
    ] = False,
    name: Annotated[str, typer.Option(help="Of the result files: tuned-NAME-MACHINE.")] = "",
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Compare tuned drafting with a sweep, with fixed trees and with mlx_lm."""
    # What is tuned here, to one task after another, is nobody else's to use.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    names = chosen_tasks(only)
    wanted = [mode.strip() for mode in modes.split(",")]
    for mode in wanted:
        if mode not in ("lossless", "shared"):
            raise UserError(f"--modes has {mode!r}, expected lossless, shared, or both")
    jobs = [(mode, task) for mode in wanted for task in names]
    decided = {} if best_of is None else decided_before(best_of, jobs)
    model, tokenizer = load(bundled.base_path(), weights=weights)
    if bits != 8:
        quantize(model, bits)
    held = "packed" if bits != 8 else model.held.form
    facts = device.describe() | {
        "items": items,
        "rounds": rounds,
        "weights": f"{bits} bits, {held}",
        "streams": "random" if random_streams else "trained",
    }
    file = "-".join(filter(None, ("tuned", name, machine_suffix(facts))))
    rows = []
    for mode, task in track(jobs, console=Console(stderr=True)):
        path = bundled.adapter_path(task) if mode == "shared" else bundled.streams_path()
        model.swap_adapter(path)
        if random_streams:
            randomize(model)
        decision = decided.get((mode, task))
        rows.append(measure(model, tokenizer, task, items, rounds, max_tokens, sweep, decision))
        values = {**facts, "rows": [row.values() for row in rows]}
        write_results(output, file, values, markdown(rows, facts))  # each row may take minutes


if __name__ == "__main__":
    typer.run(main)
