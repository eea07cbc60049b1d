"""Where streams run, and what that costs: the placements of lossless streams compared.

    python -m benchmarks.stream_placement           # the bundled model, all tasks
    python -m benchmarks.stream_placement --items 4 --tasks sql --tree-size 8

The same drafts are verified with streams beside every node (the paper), beside the few nodes that
are most probably accepted last, and deferred to a second pass of the MSA layers for the accepted
node; prompt lookup without streams is there for reference. Every item is decoded by all of them and
by mlx_lm in turn (batch 1, greedy), and all must write the same tokens.

Columns: ``CR`` = tokens per target call; ``rows`` = rows of an average step through the layers
below the streams, through the MSA layers in the same pass, and through these in a second pass;
``missed`` = calls whose accepted node had no streams, so that streams drafted nothing; ``ms`` per
call and ``speedup`` = tokens/s over mlx_lm's on the same item, both medians over items. A CPU runs
the weights expanded, for mlx_lm too.
"""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from rich.console import Console
from rich.progress import Progress
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, SpeculativeModel, bundled, load
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.drafting.settings import LIKELY_DRAFTS
from specstream_mlx.hardware import device
from specstream_mlx.loop import Step, decode
from specstream_mlx.prompts import chat_prompt

from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .task_names import chosen_tasks
from .timed_runs import run_plain


@dataclass
class Counts:
    """Sums over the steps of one placement, and medians' values, one per item."""

    steps: int = 0
    tokens: int = 0
    nodes: int = 0
    beside: int = 0
    deferred: int = 0
    missed: int = 0
    ms: list[float] = field(default_factory=list)
    speedups: list[float] = field(default_factory=list)
    identical: int = 0

    def add(self, steps: Iterable[Step], settings: DraftSettings, model: SpeculativeModel) -> None:
        """Count rows and misses of ``steps``."""
        config = model.streams.config
        placement = settings.placement(config)
        for step in steps:
            nodes = len(step.tree)
            with_streams = min(settings.stream_nodes or nodes, nodes)
            self.steps += 1
            self.nodes += nodes
            self.beside += with_streams * config.num_streams if placement == "beside" else 0
            self.deferred += config.num_streams if placement == "deferred" else 0
            has_streams = step.result.has_streams
            self.missed += has_streams is not None and not has_streams.item()

    def summary(self, name: str) -> dict[str, Any]:
        """The row of the JSON file."""
        return {
            "placement": name,
            "call_reduction": round(self.tokens / self.steps, 3),
            "rows_below": round(self.nodes / self.steps, 2),
            "rows_msa": round((self.nodes + self.beside) / self.steps, 2),
            "rows_deferred": round(self.deferred / self.steps, 2),
            "missed": round(self.missed / self.steps, 3),
            "ms_per_call": round(statistics.median(self.ms), 2),
            "speedup": round(statistics.median(self.speedups), 3),
            "same_output_as_plain": self.identical,
            "items": len(self.ms),
        }


def placements(tree: DraftSettings) -> dict[str, DraftSettings]:
    """What is compared."""
    return {
        "beside every node": replace(tree, deferred=False),
        "beside the likeliest": replace(tree, stream_nodes=1),
        "beside the 2 likeliest": replace(tree, stream_nodes=2),
        "beside the 3 likeliest": replace(tree, stream_nodes=3),
        "deferred": tree,
        "lookup, no streams": replace(tree, num_streams=0, lookup=True),
    }


def timed(
    model: SpeculativeModel,
    prompt: list[int],
    settings: DraftSettings,
    end_tokens: set[int],
    max_tokens: int,
) -> tuple[list[int], list[Step], float]:
    """Tokens, steps, and the seconds of all steps but the first, as in ``timed_runs``."""
    tokens: list[int] = []
    steps: list[Step] = []
    started = ended = 0.0
    for step in decode(model, prompt, settings):
        ended = time.perf_counter()
        started = started or ended
        steps.append(step)
        for token in step.tokens:
            tokens.append(token)
            if token in end_tokens or len(tokens) == max_tokens:
                return tokens, steps, ended - started
    raise AssertionError("decoding does not end by itself")


def measure(
    model: SpeculativeModel,
    tokenizer: Any,
    prompts: list[list[int]],
    chosen: dict[str, DraftSettings],
    counts: dict[str, Counts],
    max_tokens: int,
) -> None:
    """Decode every prompt by every placement in turn; the first prompt also warms up."""
    ends = set(tokenizer.eos_token_ids)
    for settings in chosen.values():
        timed(model, prompts[0], settings, ends, max_tokens)
    for prompt in prompts:
        plain = run_plain(model.model, tokenizer, prompt, max_tokens)
        for name, settings in chosen.items():
            tokens, steps, seconds = timed(model, prompt, settings, ends, max_tokens)
            into = counts[name]
            into.add(steps, settings, model)
            into.tokens += len(tokens)
            into.identical += tokens == plain.tokens
            if len(steps) > 1:
                into.ms.append(1e3 * seconds / (len(steps) - 1))
                rate = (len(tokens) - len(steps[0].tokens)) / seconds
                into.speedups.append(rate / plain.decode_tps)
        mx.clear_cache()


def markdown(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """The result table."""
    lines = [
        f"{measured_on(facts)}; lossless streams of the bundled model, {facts['streams']} in "
        f"{facts['msa_layers']} of {facts['layers']} layers; drafts: {facts['tree']}; "
        f"{facts['items']} held-out items of {facts['tasks']} tasks.",
        "",
        "| streams | CR | rows: below / MSA / second pass | missed | ms per call | speedup |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r['placement']} | {r['call_reduction']:.2f} | {r['rows_below']:.1f} / "
            f"{r['rows_msa']:.1f} / {r['rows_deferred']:.1f} | {r['missed']:.2f} | "
            f"{r['ms_per_call']:.1f} | {r['speedup']:.2f}x |"
        )
    return "\n".join(lines) + "\n"


@one_line_errors
def main(
    items: Annotated[int, typer.Option(help="Held-out items per task.", min=1)] = 6,
    only: Annotated[str, typer.Option("--tasks", help="Comma-separated task names.")] = "",
    tree_size: Annotated[
        int | None,
        typer.Option(help="Nodes to draft; as generate drafts where not given.", min=1),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens per item at most.", min=2)] = 160,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Compare the placements of lossless streams."""
    names = chosen_tasks(only)
    model, tokenizer = load(bundled.base_path(), adapter_path=bundled.streams_path())
    tree = LIKELY_DRAFTS if tree_size is None else DraftSettings(tree_size=tree_size)
    chosen = placements(tree)
    counts = {name: Counts() for name in chosen}
    with Progress(console=Console(stderr=True)) as progress:
        for task in progress.track(names):
            template = tasks.prompt_template(task)
            held_out = tasks.held_out(task, items)
            prompts = [chat_prompt(tokenizer, item.content, template) for item in held_out]
            measure(model, tokenizer, prompts, chosen, counts, max_tokens)
    config = model.streams.config
    facts = device.describe() | {
        "streams": config.num_streams,
        "msa_layers": config.num_msa_layers,
        "layers": config.num_hidden_layers,
        "tree": tree.describe(),
        "items": items * len(names),
        "tasks": len(names),
    }
    rows = [count.summary(name) for name, count in counts.items()]
    suffix = "" if tree_size is None else f"-{tree_size}-nodes"
    name = f"stream-placement{suffix}-{machine_suffix(facts)}"
    write_results(output, name, {"facts": facts, "rows": rows}, markdown(rows, facts))


if __name__ == "__main__":
    typer.run(main)
