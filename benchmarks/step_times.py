"""Where a step's time goes on this device: the host's share, and the wait for what is computed.

    python -m benchmarks.step_times                       # the demonstration model
    python -m benchmarks.step_times --models 16x2048      # random weights: layers x hidden size

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

from specstream_mlx import SpeculativeModel, bundled, demonstration, load
from specstream_mlx.hardware import device
from specstream_mlx.options import TEXT, integer, option
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .own_process import in_own_process
from .random_llama import Size, random_llama, with_streams
from .report import OUTPUT, commit, machine_suffix, measured_on, table, write_report
from .runner import MLX_LM, fixed_ways, streams_of
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
    found: list[tuple[float, float, float, float]] = []
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
            # A step that is enqueued ahead waits for its token behind the hand-over.
            waiting = sum(end - start for start, end in waits) if waits else ended - handed[-1]
            found.append((ended - began, waiting, handed[0] - anchor, handed[-1] - anchor))
    names = ("step", "waiting", "first", "last")
    medians = (1e3 * statistics.median(column) for column in zip(*found, strict=True))
    return dict(zip(names, medians, strict=True))


def step_times(model: SpeculativeModel, prompt: list[int], steps: int) -> Iterator[dict[str, Any]]:
    """Yield a row for mlx_lm's plain step and for each method."""
    ways: dict[str, Any] = {}
    if model.mode == "lossless":
        ways[MLX_LM] = partial(generate_step, mx.array(prompt), model.model, max_tokens=-1)
    for name, settings in fixed_ways(streams_of(model).config).items():
        ways[name] = partial(decode, model, Request(prompt, settings))
    for name, start in ways.items():
        yield {"method": name, **times_of(start(), steps)}


def models_of(name: str, vocabulary: int) -> Iterator[tuple[SpeculativeModel, list[int]]]:
    """The demonstration model with its lossless streams, or random ones in both modes."""
    if name == DEMONSTRATION:
        model, tokenizer = load(demonstration.base_path(), adapter_path=bundled.streams_path())
        (text,) = Texts("test", 1).of_task(model, tokenizer, "sql")
        yield model, text.prompt
        return
    size = Size.parse(name)
    for _, model in with_streams(*random_llama(size.layers, size.hidden, vocabulary)):
        yield model, np.array(mx.random.randint(0, vocabulary, (PROMPT,))).tolist()


def rows_of_model(name: str, steps: int, vocabulary: int) -> list[dict[str, Any]]:
    """The rows of a model's table."""
    return [
        {"model": name, **row}
        for model, prompt in models_of(name, vocabulary)
        for row in step_times(model, prompt, steps)
    ]


def markdown(rows: Sequence[dict[str, Any]], facts: dict[str, str]) -> list[str]:
    """The lines of the report."""
    plain = {row["model"]: row["step"] for row in rows if row["method"] == MLX_LM}
    shown = [row | {"share": row["step"] / plain[row["model"]]} for row in rows]
    return [f"{measured_on(facts)}; {facts['commit']}.", "", *table(COLUMNS, shown)]


def main(
    models: str = option(DEMONSTRATION, TEXT, "demonstration, and sizes of random Llamas."),
    vocabulary: int = option(VOCABULARY, integer(16), "Tokens of random Llamas."),
    steps: int = option(40, integer(1), "Steps of each method that are timed."),
    output: Path = OUTPUT,
) -> None:
    """Time the parts of a step."""
    names = models.split(",")
    for name in names:
        if name != DEMONSTRATION:
            Size.parse(name)
    rows: list[dict[str, Any]] = []
    for name in track(names, "steps"):
        rows += in_own_process(rows_of_model, name, steps, vocabulary)
    facts = device.describe() | {"commit": commit()}
    values = {"facts": facts, "rows": rows}
    print(
        write_report(output, f"step-times-{machine_suffix(facts)}", values, markdown(rows, facts))
    )


if __name__ == "__main__":
    program(main)()
