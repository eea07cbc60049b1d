"""What one decoding step costs, against the bare forwards of the same rows.

    python -m benchmarks.step_cost                  # the bundled model
    python -m benchmarks.step_cost --adapter sql --steps 60

A step over n nodes sends n rows through the lower layers, the kept nodes and their streams through
the MSA layers and a few rows through the head. The bare forwards send as many rows through the
same layers (LoRA included) with a causal mask behind as many committed tokens, each part timed by
itself. Steps and bare forwards alternate, so that both see the same machine. The last columns
divide a step: building the graph in Python, waiting for the device, and the host's work
(reading the result, committing rows, growing the next tree).
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import typer
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache
from rich.console import Console
from rich.progress import track
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, SpeculativeModel, bundled, device, load
from specstream_mlx.decoder import Decoder
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.tree import DraftTree, root_only

from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .speedup import CHAIN, PRUNED, TREE


@dataclass
class Parts:
    """Rows of one step: through the layers below the MSA layers, through these, and the head.

    A deferred step has a second pass of ``deferred`` rows through MSA layers and head.
    """

    lower: int
    upper: int
    head: int
    deferred: int = 0


@dataclass
class Times:
    """Milliseconds of every timed step of one method."""

    step: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)


def rows_of(model: SpeculativeModel, tree: DraftTree, settings: DraftSettings) -> Parts:
    """How many rows a step over ``tree`` sends where."""
    nodes = len(tree)
    kept = min(settings.max_nodes or nodes, nodes)
    placement = settings.placement(model.streams.config)
    streams = model.streams.config.num_streams if placement != "none" else 0
    early_exit = nodes if kept < nodes else 0
    if placement == "beside":
        return Parts(nodes, kept * (1 + streams), kept + streams + early_exit)
    return Parts(nodes, kept, kept + early_exit, deferred=streams)


class BareForwards:
    """The model's own layers, run on any number of rows behind a given prefix."""

    def __init__(self, model: nn.Module, first_msa_layer: int, prefix: Sequence[int]):
        self.model, self.first = model, first_msa_layer
        self.caches = make_prompt_cache(model)
        mx.eval(model(mx.array(prefix)[None], cache=self.caches))

    def seconds(self, parts: Parts) -> float:
        """The sum of the parts, each timed by itself."""
        total = self._layers(parts.lower, 0, self.first)
        total += self._layers(parts.upper, self.first, len(self.caches))
        total += self._head(parts.head)
        if parts.deferred:
            total += self._layers(parts.deferred, self.first, len(self.caches))
            total += self._head(parts.deferred)
        return total

    def _hidden(self, rows: int) -> mx.array:
        tokens = mx.arange(rows) % 100
        hidden = self.model.model.embed_tokens(tokens[None])
        mx.eval(hidden)
        return hidden

    def _layers(self, rows: int, start: int, end: int) -> float:
        hidden = self._hidden(rows)
        caches = self.caches[start:end]
        began = time.perf_counter()
        mask = "causal" if rows > 1 else None
        for layer, cache in zip(self.model.layers[start:end], caches, strict=True):
            hidden = layer(hidden, mask, cache=cache)
        mx.eval(hidden)
        seconds = time.perf_counter() - began
        trim_prompt_cache(caches, rows)
        return seconds

    def _head(self, rows: int) -> float:
        hidden = self._hidden(rows)
        inner = self.model.model
        began = time.perf_counter()
        normed = inner.norm(hidden)
        tied = self.model.args.tie_word_embeddings
        mx.eval(inner.embed_tokens.as_linear(normed) if tied else self.model.lm_head(normed))
        return time.perf_counter() - began


def measure(
    model: SpeculativeModel, prompts: list[list[int]], settings: DraftSettings, steps: int
) -> tuple[Times, Parts]:
    """Time steps of ``settings`` on each prompt, and the bare forwards between them."""
    times = Times()
    parts = None
    for prompt in prompts:
        placement = settings.placement(model.streams.config)
        caches = make_prompt_cache(model.model)
        decoder = Decoder(model.model, model.streams, caches)
        decoder.prefill(mx.array(prompt[:-1]))
        mx.eval([cache.state for cache in caches])
        first = model.streams.config.first_msa_layer
        bare = BareForwards(model.model, first, prompt)
        tree = root_only(prompt[-1])
        for number in range(steps):
            rows = rows_of(model, tree, settings)
            began = time.perf_counter()
            result = decoder.step(
                tree, placement, settings.tree_width, settings.max_nodes, settings.prune_threshold
            )
            mx.async_eval(*result.arrays())
            built = time.perf_counter()
            mx.eval(*result.arrays())
            done = time.perf_counter()
            last = result.last.item()
            kept = list(range(len(tree))) if result.kept is None else result.kept.tolist()
            path = tree.path(kept[last])
            decoder.commit(path, [kept.index(node) for node in path])
            token = int(np.array(result.predictions)[last])
            if result.candidates is None:
                tree = root_only(token)
            else:
                tree = settings.grow(token, np.array(result.candidates), np.array(result.log_probs))
            ended = time.perf_counter()
            if number < 2:
                continue  # the first trees of a text are smaller, and shapes are new
            parts = rows
            times.step.append(1e3 * (ended - began))
            times.build.append(1e3 * (built - began))
            times.wait.append(1e3 * (done - built))
            times.host.append(1e3 * (ended - done))
            times.bare.append(1e3 * bare.seconds(rows))
    return times, parts


def methods(model: SpeculativeModel) -> dict[str, DraftSettings]:
    """What is measured of the mounted adapter."""
    if model.mode == "shared":
        return {"shared, chain": CHAIN, "shared, tree": TREE, "shared, tree, pruned": PRUNED}
    chosen: dict[str, DraftSettings] = {"one token a step": DraftSettings(speculation=False)}
    for name, settings in (("chain", CHAIN), ("tree", TREE), ("tree, pruned", PRUNED)):
        chosen[f"lossless, {name}"] = replace(settings, deferred=False)
        chosen[f"lossless, {name}, deferred"] = settings
    return chosen


def row(name: str, adapter: str, times: Times, parts: Parts) -> dict[str, Any]:
    """One line of the table."""
    ratio = statistics.median(s / b for s, b in zip(times.step, times.bare, strict=True))
    medians = {key: round(statistics.median(values), 2) for key, values in vars(times).items()}
    return {"adapter": adapter, "method": name, **vars(parts), **medians, "ratio": round(ratio, 3)}


def markdown(rows: list[dict[str, Any]], facts: dict[str, str]) -> str:
    """The result table."""
    lines = [
        f"{measured_on(facts)}. Milliseconds, medians.",
        "",
        "| adapter | method | rows: lower / MSA / head / deferred | step | bare forwards | "
        "step / bare | of a step: graph | device | host |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        counts = f"{r['lower']} / {r['upper']} / {r['head']} / {r['deferred']}"
        lines.append(
            f"| {r['adapter']} | {r['method']} | {counts} | {r['step']:.1f} | {r['bare']:.1f} | "
            f"{r['ratio']:.2f} | {r['build']:.1f} | {r['wait']:.1f} | {r['host']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main(
    adapter: Annotated[str, typer.Option(help="A bundled adapter's name, or a directory.")] = "sql",
    model_path: Annotated[
        Path | None, typer.Option("--model", help="MLX model directory; the bundled one.")
    ] = None,
    streams: Annotated[
        Path | None, typer.Option(help="Lossless streams of the base; the bundled ones.")
    ] = None,
    items: Annotated[int, typer.Option(help="Prompts per method.", min=1)] = 4,
    steps: Annotated[int, typer.Option(help="Steps per prompt.", min=4)] = 24,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Measure a step against the bare forwards of the same rows."""
    base, tokenizer = load(model_path or bundled.base_path())
    rows = []
    lossless = streams or bundled.streams_path()
    tuned = bundled.adapter_path(adapter) if adapter in bundled.adapter_names() else Path(adapter)
    task = adapter if adapter in tasks.TASKS else "sql"
    held_out = tasks.held_out(task, items)
    prompts = [chat_prompt(tokenizer, i.content, tasks.prompt_template(task)) for i in held_out]
    for path in (lossless, tuned):
        base.swap_adapter(path)
        for name, settings in track(methods(base).items(), console=Console(stderr=True)):
            rows.append(row(name, path.name, *measure(base, prompts, settings, steps)))
    facts = device.describe()
    summary = {"facts": facts, "rows": rows}
    write_results(output, f"step-cost-{machine_suffix(facts)}", summary, markdown(rows, facts))


if __name__ == "__main__":
    typer.run(main)
