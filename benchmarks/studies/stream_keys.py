"""What top-p key selection (arXiv 2402.11131, App. H.1) would save the streams of a long context.

    python -m benchmarks.studies.stream_keys

There each stream attends to the p keys of the prefix that its main row attends to most, instead of
to all. A mask saves no work, only a gather does, and that needs all streams of a pass to agree: the
deferred pass for one accepted node. So this measures, in one layer of a random Llama and at several
contexts, the attention of gamma stream rows to all keys, and the same with the p keys gathered: the
main row's scores over the prefix, the p greatest for each kv head (summed over the query heads that
share it), keys and values at these. ``saved of a step`` is what the difference is of a deferred
step: main rows through all layers and the streams through the MSA layers, without the head.

The verdict is in NOTES.md: the runtime does not select keys.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache
from mlx_lm.models.llama import Model

from specstream_mlx.cli.progress import track
from specstream_mlx.hardware import device

from ..random_llama import random_llama
from ..report import RESULTS, machine_suffix, measured_on, table, write_report

HEADS, HEAD_DIM, LAYERS = 8, 64, 8
MAIN_ROWS, STREAMS = 5, 4
CONTEXTS = 256, 1024, 4096, 8192


def all_keys(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """Attention (1, heads, gamma, d) of the streams to the prefix and the rows behind it."""
    mask = mx.ones((queries.shape[2], keys.shape[2]), mx.bool_)
    scale = HEAD_DIM**-0.5
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


def best_keys(
    query: mx.array, queries: mx.array, keys: mx.array, values: mx.array, prefix: int, count: int
) -> mx.array:
    """The same over the ``count`` prefix keys that ``query`` (1, heads, 1, d) weighs most."""
    kv_heads = keys.shape[1]
    grouped = query.reshape(1, kv_heads, -1, HEAD_DIM) * HEAD_DIM**-0.5
    scores = grouped @ keys[:, :, :prefix].swapaxes(2, 3)
    if scores.shape[2] > 1:
        scores = mx.softmax(scores, axis=-1)
    best = mx.argpartition(-scores.sum(axis=2), kth=count - 1, axis=-1)[..., :count, None]
    chosen = (
        mx.concatenate([mx.take_along_axis(rows, best, axis=2), rows[:, :, prefix:]], axis=2)
        for rows in (keys, values)
    )
    return all_keys(queries, *chosen)


def milliseconds(function: Callable[[], Any]) -> float:
    """Of one evaluation."""
    began = time.perf_counter()
    mx.eval(function())
    return 1e3 * (time.perf_counter() - began)


def measure(model: Model, context: int, count: int, msa_layers: int, runs: int) -> dict[str, Any]:
    """One context; the kinds alternate."""
    layers, kv_heads = model.model.layers, model.args.num_key_value_heads
    caches, dtype = make_prompt_cache(model), model.model.norm.weight.dtype
    for cache in caches:
        prefix = mx.random.normal((2, 1, kv_heads, context, HEAD_DIM)).astype(dtype)
        cache.update_and_fetch(*prefix)
        mx.eval(cache.state)
    rows = {
        n: mx.random.normal((1, n, HEADS * HEAD_DIM)).astype(dtype) for n in (MAIN_ROWS, STREAMS)
    }
    query, queries = (mx.random.normal((1, HEADS, n, HEAD_DIM)).astype(dtype) for n in (1, STREAMS))
    shape = 1, kv_heads, context + MAIN_ROWS + STREAMS, HEAD_DIM
    keys, values = (mx.random.normal(shape).astype(dtype) for _ in range(2))
    mx.eval(rows, query, queries, keys, values)

    def through(number: int, first: int) -> mx.array:
        hidden, used = rows[number], caches[first:]
        for layer, cache in zip(layers[first:], used, strict=True):
            hidden = layer(hidden, "causal", cache=cache)
        mx.eval(hidden)
        trim_prompt_cache(used, number)
        return hidden

    kinds = {
        "all": lambda: all_keys(queries, keys, values),
        "best": lambda: best_keys(query, queries, keys, values, context, count),
        "main": lambda: through(MAIN_ROWS, 0),
        "streams": lambda: through(STREAMS, LAYERS - msa_layers),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(runs + 1):
        for kind, function in kinds.items():
            taken = milliseconds(function)
            if number:
                times[kind].append(taken)
    ratio = statistics.median(b / a for a, b in zip(times["all"], times["best"], strict=True))
    saved = statistics.median(
        msa_layers * (a - b) / (m + s) for a, b, m, s in zip(*times.values(), strict=True)
    )
    medians = {kind: round(statistics.median(values), 2) for kind, values in times.items()}
    head = {"kv_heads": kv_heads, "context": context, **medians}
    return head | {"best_over_all": round(ratio, 2), "saved": round(saved, 3)}


COLUMNS = {
    "kv heads": "{kv_heads}",
    "context": "{context}",
    "all keys": "{all:.2f}",
    "p keys": "{best:.2f}",
    "ratio": "{best_over_all:.2f}",
    "a step: main rows": "{main:.1f}",
    "streams": "{streams:.1f}",
    "saved of a step": "{saved:.0%}",
}


def markdown(results: list[dict[str, Any]], facts: dict[str, Any]) -> list[str]:
    """The lines of the report."""
    return [
        f"{measured_on(facts)}. {LAYERS} layers x {HEADS * HEAD_DIM}, {HEADS} heads of {HEAD_DIM}; "
        f"{STREAMS} streams in {facts['msa_layers']} layers, {MAIN_ROWS} main rows; "
        f"p = {facts['keys']}. Milliseconds, medians.",
        "",
        *table(COLUMNS, results),
    ]


def main(
    keys: Annotated[
        int, typer.Option(help="p, the keys a stream attends to.", min=1, max=256)
    ] = 64,
    msa_layers: Annotated[int, typer.Option(help="Layers with streams.", min=1, max=LAYERS)] = 2,
    runs: Annotated[int, typer.Option(help="Timed evaluations of each kind.", min=1)] = 25,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Measure what top-p key selection would save."""
    results = []
    for kv_heads in track((HEADS, 2), "heads for keys and values"):
        model, _ = random_llama(LAYERS, HEADS * HEAD_DIM, 256, kv_heads)
        for context in track(CONTEXTS, "contexts"):
            results.append(measure(model, context, keys, msa_layers, runs))
    facts = device.describe() | {"keys": keys, "msa_layers": msa_layers}
    summary = {"facts": facts, "rows": results}
    name = f"stream-keys-{machine_suffix(facts)}"
    print(write_report(output, name, summary, markdown(results, facts)))


if __name__ == "__main__":
    typer.run(main)
