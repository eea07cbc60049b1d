"""Memory, work and speed behind 2k to 32k tokens, on a random Llama of 4 layers of 512.

    python -m benchmarks.long_context
    python -m benchmarks.long_context --contexts 1024,8192 --tokens 32
    python -m benchmarks.long_context --no-timing       # on a busy machine

Every row runs in a process of its own, so that its peaks are its own. Memory is what MLX holds
above the weights: the KV cache, the peak of reading the prompt in chunks, and the peak of decoding.
Operations and bytes are those of the graphs of single steps, ours over mlx_lm's (``step_graphs``).
The weights are random, so the streams' drafts are hardly ever right: the ratio compares steps, of
the same tree at every context, and is no speedup.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from specstream_mlx import PromptCache, SpeculativeModel
from specstream_mlx.hardware import device
from specstream_mlx.options import FLAG, TEXT, integer, option
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .own_process import in_own_process
from .random_llama import random_llama, untrained_streams
from .report import OUTPUT, machine_suffix, measured_on, table, write_report
from .runner import CHAIN, TREE
from .step_graphs import plain_graph, step_graph

LAYERS, HIDDEN, VOCABULARY, KV_HEADS = 4, 512, 4096, 2


def random_model() -> SpeculativeModel:
    """A random Llama with random lossless streams on its two upper layers."""
    model, config = random_llama(LAYERS, HIDDEN, VOCABULARY, KV_HEADS)
    streams = untrained_streams(
        config, mode="lossless", num_streams=4, num_msa_layers=2, pruner_rank=0
    )
    return SpeculativeModel(model, config, Path("in memory"), streams=streams)


def peak_above(held: int) -> float:
    """MB in use at the most since the last call, above ``held`` bytes."""
    peak = mx.get_peak_memory() - held
    mx.reset_peak_memory()
    return peak / 1e6


def one_context(context: int, tokens: int, chunk: int) -> dict[str, Any]:
    """One row: both prefill and decode one after the other."""
    model = random_model()
    prompt = np.array(mx.random.randint(0, VOCABULARY, (context,))).tolist()
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    caches = make_prompt_cache(model.model)
    plain = generate_step(
        mx.array(prompt), model.model, max_tokens=tokens, prefill_step_size=chunk,
        prompt_cache=caches,
    )  # fmt: skip
    next(plain)
    row = {"context": context, "plain_prefill": peak_above(held)}
    plain_seconds = list(_seconds(plain))
    row["plain_decode"] = peak_above(held)
    del plain, caches
    mx.clear_cache()
    mx.reset_peak_memory()
    cache = PromptCache()
    steps = decode(model, Request(prompt, CHAIN, prefill_step_size=chunk, prompt_cache=cache))
    next(steps)
    row["prefill"] = peak_above(held)
    seconds = [second for second, _ in zip(_seconds(steps), range(tokens), strict=False)]
    row["decode"] = peak_above(held)
    row["kv_cache"] = sum(layer.nbytes for layer in cache.caches) / 1e6
    row["step_ratio"] = statistics.median(seconds) / statistics.median(plain_seconds)
    return row | work(model, context)


def work(model: SpeculativeModel, context: int) -> dict[str, float]:
    """Operations of a tree's step, and bytes of weights, keys and values, over mlx_lm's."""
    plain = plain_graph(model, context=context)
    step = step_graph(model, TREE, context=context)
    return {
        "operations": step.count / plain.count,
        "bytes": step.bytes_read / plain.bytes_read,
    }


def _seconds(steps: Iterator[Any]) -> Iterator[float]:
    """Yield the seconds that each step took."""
    start = time.perf_counter()
    for _ in steps:
        now = time.perf_counter()
        yield now - start
        start = now


COLUMNS = {
    "context": "{context}",
    "KV cache": "{kv_cache:.1f}",
    "prefill, peak": "{prefill:.1f}",
    "prefill, mlx_lm": "{plain_prefill:.1f}",
    "decoding, peak": "{decode:.1f}",
    "decoding, mlx_lm": "{plain_decode:.1f}",
    "operations": "{operations:.2f}x",
    "bytes": "{bytes:.2f}x",
    "step": "{step_ratio:.2f}x",
}


def markdown(
    rows: list[dict[str, Any]], tokens: int, chunk: int, facts: dict[str, str]
) -> list[str]:
    """The lines of the report."""
    return [
        f"{measured_on(facts)}. A random Llama, {LAYERS} x {HIDDEN}, {KV_HEADS} of 8 heads for "
        f"keys and values, chunks of {chunk} prompt tokens, {tokens} steps. MB above the weights; "
        "operations and bytes are those of a step over a tree of 8 against mlx_lm's, the last "
        "column is the time of one over a chain of 4 against one of mlx_lm's.",
        "",
        *table(COLUMNS, rows),
    ]


def main(
    contexts: str = option("2048,8192,32768", TEXT, "Prompt lengths."),
    tokens: int = option(64, integer(1), "Steps to decode."),
    chunk: int = option(512, integer(1), "Prompt tokens per pass."),
    output: Path = OUTPUT,
    timing: bool = option(True, FLAG, "Time nothing: the machine is busy."),
) -> None:
    """Measure memory and speed by context."""
    rows = []
    for context in track(contexts.split(","), "contexts"):
        row = in_own_process(one_context, int(context), tokens, chunk)
        rows.append(row if timing else {**row, "step_ratio": None})
    facts = device.describe()
    name = f"long-context-{machine_suffix(facts)}"
    values = {"facts": facts, "tokens": tokens, "chunk": chunk, "rows": rows}
    print(write_report(output, name, values, markdown(rows, tokens, chunk, facts)))


if __name__ == "__main__":
    program(main)()
