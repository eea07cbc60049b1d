"""What one decoding step costs, against the bare forwards of the same rows.

    python -m benchmarks.step_cost                  # the bundled model
    python -m benchmarks.step_cost --adapter sql --steps 60
    python -m benchmarks.step_cost --random-llama 8x1024    # random weights, untrained streams
    python -m benchmarks.step_cost --model DIR --streams DIR    # a model of yours

A step over n nodes sends n rows through the lower layers, the kept nodes and their streams through
the MSA layers and a few rows through the head; see ``bare_forwards`` for what it is divided by.
Steps and bare forwards alternate behind the same text, so that both see the same machine.
``overhead`` is the share of a step beyond its bare forwards, ``products`` what the model's own
products with weights take. The last columns divide a step: building the graph in Python, waiting
for the device, and the host's work (reading the result, committing rows, growing the next tree).

``plain decoding`` compares loops: ``stream_generate`` without drafts, milliseconds a token, against
mlx_lm's in interleaved pairs.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from specstream_mlx.convert.demo_model import tasks

from specstream_mlx import DraftSettings, SpeculativeModel, bundled, load
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.drafting.tree import root_only
from specstream_mlx.engine.decoder import Decoder
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.hardware import device
from specstream_mlx.prompts import chat_prompt

from .bare_forwards import BareForwards, Parts, rows_of
from .random_llama import Size, random_llama, with_streams
from .result_files import RESULTS, machine_suffix, measured_on, write_results
from .speedup import CHAIN, PRUNED, TREE, check_both
from .timed_runs import run_plain, run_streams

PLAIN_TOKENS = 48


@dataclass
class Times:
    """Milliseconds of every timed step of one method."""

    step: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    products: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)


def measure(
    model: SpeculativeModel, prompts: list[list[int]], settings: DraftSettings, steps: int
) -> tuple[Times, Parts]:
    """Time steps of ``settings`` on each prompt, and the bare forwards between them."""
    times = Times()
    parts = None
    for prompt in prompts:
        placement = settings.placement(model.streams.config)
        caches = make_caches(model.model, model.config)
        decoder = Decoder(model.model, model.streams, caches)
        decoder.prefill(mx.array(prompt[:-1]))
        mx.eval([cache.state for cache in caches])
        first = model.streams.config.first_msa_layer
        bare = BareForwards(model.model, first, prompt[:-1])
        tree, timed = root_only(prompt[-1]), []
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
            committed = tree.tokens[path]
            token = int(np.array(result.predictions)[last])
            if result.candidates is None:
                tree = root_only(token)
            else:
                tree = settings.grow(token, np.array(result.candidates), np.array(result.log_probs))
            ended = time.perf_counter()
            if number >= 2:  # the first trees of a text are smaller, and shapes are new
                parts = rows
                times.step.append(1e3 * (ended - began))
                times.build.append(1e3 * (built - began))
                times.wait.append(1e3 * (done - built))
                times.host.append(1e3 * (ended - done))
                times.bare.append(1e3 * bare.seconds(rows))
                timed.append(rows)
            bare.extend(committed)
        times.products += [1e3 * bare.products(rows) for rows in timed]
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


def plain_decoding(model: SpeculativeModel, tokenizer, prompts: list[list[int]]) -> dict[str, Any]:
    """Milliseconds a token of both plain loops, in at least six interleaved pairs."""
    settings = DraftSettings(num_streams=0)
    pairs = []
    for number in range(max(6, len(prompts)) + 1):
        prompt = prompts[number % len(prompts)]
        sides = [
            lambda prompt=prompt: run_streams(model, tokenizer, prompt, PLAIN_TOKENS, settings),
            lambda prompt=prompt: run_plain(model.model, tokenizer, prompt, PLAIN_TOKENS),
        ]
        order = (0, 1) if number % 2 else (1, 0)
        rates = {side: sides[side]().decode_tps for side in order}
        pairs.append((rates[0], rates[1]))
    pairs = pairs[1:]  # the first one warms both up
    ours, plain = (
        statistics.median(1e3 / rate for rate in side) for side in zip(*pairs, strict=True)
    )
    ratio = statistics.median(rate / other for rate, other in pairs)
    return {"ours": round(ours, 2), "mlx_lm": round(plain, 2), "rate_ratio": round(ratio, 3)}


def row(name: str, adapter: str, times: Times, parts: Parts) -> dict[str, Any]:
    """One line of the table."""
    ratio = statistics.median(s / b for s, b in zip(times.step, times.bare, strict=True))
    medians = {key: round(statistics.median(values), 2) for key, values in vars(times).items()}
    line = {"adapter": adapter, "method": name, **vars(parts), **medians, "ratio": round(ratio, 3)}
    return line | {"overhead": round(1 - 1 / ratio, 3)}


def markdown(rows: list[dict[str, Any]], plain: dict[str, Any], facts: dict[str, str]) -> str:
    """The result table."""
    lines = [
        f"{measured_on(facts)}. Milliseconds, medians.",
        "",
        "| adapter | method | rows: lower / MSA / head / deferred | step | bare forwards | "
        "step / bare | overhead | products | of a step: graph | device | host |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        heads = " + ".join(map(str, r["heads"]))
        counts = f"{r['lower']} / {r['upper']} / {heads} / {r['deferred']}"
        lines.append(
            f"| {r['adapter']} | {r['method']} | {counts} | {r['step']:.1f} | {r['bare']:.1f} | "
            f"{r['ratio']:.2f} | {r['overhead']:.0%} | {r['products']:.1f} | {r['build']:.1f} | "
            f"{r['wait']:.1f} | {r['host']:.1f} |"
        )
    lines += [
        "",
        f"Plain decoding, ms a token: {plain['ours']:.2f} here, {plain['mlx_lm']:.2f} by "
        f"mlx_lm.stream_generate; rate / mlx_lm's {plain['rate_ratio']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


Mounted = Iterator[tuple[str, SpeculativeModel]]


def mounted(base: SpeculativeModel, adapters: Sequence[Path]) -> Mounted:
    """The base with one adapter after the other, lossless streams first."""
    for path in adapters:
        base.swap_adapter(path)
        yield path.name, base


@one_line_errors
def main(
    adapter: Annotated[
        str | None,
        typer.Option(help="Shared: a bundled adapter's name, or a directory; sql without --model."),
    ] = None,
    model_path: Annotated[
        Path | None, typer.Option("--model", help="MLX model directory; the bundled one.")
    ] = None,
    streams: Annotated[
        Path | None, typer.Option(help="Lossless streams of --model; the bundled ones.")
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(
            "--random-llama",
            metavar="LAYERSxHIDDEN",
            help="Instead of these a Llama with random float32 weights, such as 8x1024.",
        ),
    ] = None,
    vocabulary: Annotated[
        int, typer.Option(help="Of the random Llama; at least the bundled one's.", min=4096)
    ] = 4096,
    items: Annotated[int, typer.Option(help="Prompts per method.", min=1)] = 4,
    steps: Annotated[int, typer.Option(help="Steps per prompt.", min=4)] = 24,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Measure a step against the bare forwards of the same rows."""
    size = random and Size.parse(random)
    check_both(model_path, streams)
    base_path = model_path or bundled.base_path()
    base, tokenizer = load(base_path)
    adapters = [streams or bundled.streams_path()]
    adapter = adapter or (None if model_path else "sql")
    if adapter in bundled.adapter_names():
        adapters.append(bundled.adapter_path(adapter))
    elif adapter:
        adapters.append(Path(adapter))
    for path in adapters:  # what does not fit is refused before anything is timed
        base.swap_adapter(path)
    task = adapter if adapter in tasks.TASKS else "sql"
    held_out = tasks.held_out(task, items)
    prompts = [chat_prompt(tokenizer, i.content, tasks.prompt_template(task)) for i in held_out]
    models = with_streams(*random_llama(size, vocabulary)) if size else mounted(base, adapters)
    rows, plain = [], None
    for name, model in models:
        if plain is None:  # lossless comes first
            plain = plain_decoding(model, tokenizer, prompts)
        for method, settings in track(methods(model).items(), console=Console(stderr=True)):
            rows.append(row(method, name, *measure(model, prompts, settings, steps)))
    facts = device.describe()
    summary = {"facts": facts, "rows": rows, "plain_decoding": plain}
    name = f"step-cost-{f'random-{random}-' if random else ''}{machine_suffix(facts)}"
    name += f"-{base_path.resolve().name}" if model_path else ""
    write_results(output, name, summary, markdown(rows, plain, facts))


if __name__ == "__main__":
    typer.run(main)
