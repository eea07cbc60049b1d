"""Where a step's time goes on this device: the host's share, and the wait for what is computed.

    python -m benchmarks.step_times                       # the demonstration model
    python -m benchmarks.step_times --models 36x512       # random weights: layers x hidden size

The loop itself runs. Milliseconds of a step are medians. ``waiting`` is the host's for the device,
at the reading of the step; ``first hand-over`` and ``last`` are counted from there, or from where
the step's Python begins if it is enqueued ahead, as plain steps are. Random weights are hardly ever
guessed right, so their steps are compared, and no speed. ``step_graphs`` counts the operations.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model, ModelArgs

from specstream_mlx import SpeculativeModel, UserError, bundled, demonstration, load
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.hardware import device
from specstream_mlx.options import TEXT, integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, commit, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, fixed_ways, streams_of
from .step_graphs import llama_config, streams_as_trained
from .texts import Texts

DEMONSTRATION = "demonstration"
VOCABULARY = 128_256
"""Tokens of random models; with 16 layers of 2,048 that is 1.1 B."""

PROMPT, WARM_UP = 64, 8

COLUMNS = {
    "model": "{model}",
    "method": "{method}",
    "ms a step": "{step:.2f}",
    "waiting": "{waiting:.2f}",
    "first hand-over": "{first:.2f}",
    "last": "{last:.2f}",
    "of mlx_lm's step": "{share:.2f}",
}


@contextmanager
def _marks() -> Iterator[list[tuple[str, float, float]]]:
    """Note beginning and end of every wait (``eval``) and hand-over (``async_eval``)."""
    noted: list[tuple[str, float, float]] = []

    def timed(name: str) -> Any:
        original = getattr(mx, name)

        def call(*arrays: Any) -> None:
            began = time.perf_counter()
            original(*arrays)
            noted.append((name, began, time.perf_counter()))

        return patch.object(mx, name, call)

    with ExitStack() as patches:
        for name in ("eval", "async_eval"):
            patches.enter_context(timed(name))
        yield noted


def times_of(run: Iterator[Any], steps: int) -> dict[str, float]:
    """Median milliseconds of a run's steps: ``step``, ``waiting``, ``first``, ``last``."""
    times: list[tuple[float, float, float, float]] = []
    with _marks() as noted:
        for number in range(WARM_UP + steps):
            noted.clear()
            began = time.perf_counter()
            next(run)
            ended = time.perf_counter()
            waits = [(start, end) for name, start, end in noted if name == "eval"]
            anchor = waits[0][1] if waits else began
            handed = [end for name, _, end in noted if name == "async_eval" and end > anchor]
            if number < WARM_UP or not handed:
                continue
            # A step that is enqueued ahead waits for its token after the hand-over.
            waiting = sum(end - start for start, end in waits) if waits else ended - handed[-1]
            times.append((ended - began, waiting, handed[0] - anchor, handed[-1] - anchor))
    names = ("step", "waiting", "first", "last")
    medians = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    return dict(zip(names, medians, strict=True))


def size_of(name: str) -> tuple[int, int]:
    """Read layers and hidden size, as in ``36x512``."""
    layers, _, hidden = name.partition("x")
    fits = layers.isdecimal() and hidden.isdecimal() and int(layers) > 1 and int(hidden) > 0
    if not fits or int(hidden) % 64:
        raise UserError(
            f"the random Llama is {name!r}, expected at least 2 layers and a hidden size that is a "
            "multiple of 64, such as 36x512"
        )
    return int(layers), int(hidden)


def random_llama(layers: int, hidden: int) -> SpeculativeModel:
    """A random Llama with four untrained lossless streams in the top quarter of its layers."""
    heads = hidden // 64
    config = llama_config(layers, hidden, heads, heads, hidden * 11 // 4, VOCABULARY)
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(config))
    model.set_dtype(device.fast_dtype(mx.float16))
    streams = streams_as_trained(layers, hidden, "lossless", max(1, layers // 4))
    mx.eval(model.parameters(), streams.parameters())
    return SpeculativeModel(model, config, Path("random"), streams=streams)


def rows_of_model(name: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yield a row for mlx_lm's plain step and for each method."""
    if name == DEMONSTRATION:
        model, tokenizer = load(demonstration.base_path(), adapter_path=bundled.streams_path())
        prompt = Texts("test", 1).of_task(model, tokenizer, "sql")[0].prompt
    else:
        model = random_llama(*size_of(name))
        prompt = np.array(mx.random.randint(0, VOCABULARY, (PROMPT,))).tolist()
    ways: dict[str, Any] = {
        MLX_LM: partial(generate_step, mx.array(prompt), model.model, max_tokens=-1)
    }
    for way, settings in fixed_ways(streams_of(model).config).items():
        ways[way] = partial(decode, model, Request(prompt, settings))
    for way, start in ways.items():
        yield {"model": name, "method": way, **times_of(start(), steps)}


def markdown(rows: Sequence[dict[str, Any]], facts: dict[str, str]) -> list[str]:
    plain = {row["model"]: row["step"] for row in rows if row["method"] == MLX_LM}
    shown = [row | {"share": row["step"] / plain[row["model"]]} for row in rows]
    return [f"{measured_on(facts)}; {facts['commit']}.", "", *table(COLUMNS, shown)]


def main(
    models: str = option(DEMONSTRATION, TEXT, "demonstration, and sizes of random Llamas."),
    steps: int = option(40, integer(1), "Steps of each method that are timed."),
    output: Path = OUTPUT,
) -> None:
    """Time the parts of a step."""
    names = models.split(",")
    for name in names:
        if name != DEMONSTRATION:
            size_of(name)
    rows = [row for name in track(names, "steps") for row in rows_of_model(name, steps)]
    facts = device.describe() | {"commit": commit()}
    values = {"facts": facts, "rows": rows}
    print(
        write_report(output, f"step-times-{machine_suffix(facts)}", values, markdown(rows, facts))
    )


if __name__ == "__main__":
    program(main)()
