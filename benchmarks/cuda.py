"""The suite and the steps on MLX's CUDA backend, the GPU that may be at hand where no Mac is.

    pip install 'mlx[cuda13]'                       # instead of mlx[cpu]
    python -m benchmarks.cuda
    python -m benchmarks.cuda --tests tests/engine --models 16x2048
    python -m benchmarks.cuda --device cpu --models 2x64 --tests tests/test_floors.py   # a dry run

It says whether the code is right where nothing is computed in order and rounding is another, and
where a step's time goes when the host does not compute. It says nothing of a Mac: other kernels,
another driver, memory of its own. What fails is listed, tests with what they said, and so are
near-ties: tokens that fell otherwise than in mlx_lm between two logits that are almost the same.

Milliseconds of a step are medians. ``waiting`` is the host's for the device, at the reading of the
step; ``first hand-over`` and ``last`` are counted from there, or from where the step's Python
begins if it is enqueued ahead, as plain steps are. Random weights are hardly ever guessed right, so
their steps are compared, and no speed.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from specstream_mlx import SpeculativeModel, UserError, bundled, demonstration, load
from specstream_mlx.hardware import device
from specstream_mlx.loop import Request, decode
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import TEXT, choice, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .own_process import in_own_process
from .random_llama import Size, random_llama, with_streams
from .report import OUTPUT, commit, measured_on, table, write_report
from .runner import MLX_LM, fixed_ways, streams_of
from .step_cost import with_adapters
from .texts import Texts, shared_adapters

Where = Literal["gpu", "cpu"]

DEMONSTRATION = "demonstration"
VOCABULARY, DRY_VOCABULARY = 128_256, 512
"""Tokens of random models, on a GPU and in a dry run; with 16 layers of 2,048 that is 1.1 B."""

PROMPT, WARM_UP = 64, 8
NEAR_TIE = "the top two logits are"
"""Said by tests that accept one (``tests/random_models.py``)."""


# The suite ------------------------------------------------------------------------------------


class Outcome:
    """A pytest plugin that notes what failed, and near-ties."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[list[str]] = []
        self.near_ties: list[list[str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once, by its call or what kept it from being called."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else report.longreprtext
            self.failures.append([report.nodeid, " ".join(said.split())[:200]])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note modules that cannot be imported."""
        if report.failed:
            self.counts["failed"] += 1
            self.failures.append([report.nodeid, report.longreprtext.splitlines()[-1][:200]])

    def pytest_warning_recorded(self, warning_message: Any, nodeid: str) -> None:
        """Note near-ties."""
        if NEAR_TIE in str(warning_message.message):
            self.near_ties.append([nodeid, str(warning_message.message)])


def suite(where: Where, tests: Sequence[str]) -> dict[str, Any]:
    """Run tests on a device; returns counts by outcome, failures and near-ties."""
    set_device(where)
    outcome = Outcome()
    pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *tests], plugins=[outcome])
    return vars(outcome)


# The steps ------------------------------------------------------------------------------------


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
    """Yield a row for mlx_lm's plain step and for each method; what fails says why."""

    def plain() -> Iterator[Any]:
        return generate_step(mx.array(prompt), model.model, max_tokens=-1)

    ways = {} if model.mode == "shared" else {MLX_LM: plain}
    for name, settings in fixed_ways(streams_of(model).config).items():
        request = Request(prompt, settings)
        ways[name] = partial(decode, model, request)
    for name, start in ways.items():
        try:
            yield {"method": name, **times_of(start(), steps)}
        except Exception as error:  # a kernel that the backend lacks must not end the report
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            yield {
                "method": f"{name}: {said}",
                **dict.fromkeys(("step", "waiting", "first", "last")),
            }


def models_of(name: str) -> Iterator[tuple[SpeculativeModel, list[int]]]:
    """Yield a model in lossless mode and, if there are such streams, in shared mode."""
    if name == DEMONSTRATION:
        base, tokenizer = load(demonstration.base_path())
        adapters = [bundled.streams_path(), *map(bundled.adapter_path, shared_adapters()[:1])]
        (text,) = Texts("test", 1).of_task(base, tokenizer, "sql")
        for _, model in with_adapters(base, adapters):
            yield model, text.prompt
        return
    size, tokens = Size.parse(name), VOCABULARY
    if device.backend() == "cpu":
        tokens = DRY_VOCABULARY
    for _, model in with_streams(*random_llama(size.layers, size.hidden, tokens)):
        yield model, np.array(mx.random.randint(0, tokens, (PROMPT,))).tolist()


def rows_of_model(where: Where, name: str, steps: int) -> list[dict[str, Any]]:
    """The rows of a model's table."""
    set_device(where)
    return [
        {"model": name, **row}
        for model, prompt in models_of(name)
        for row in step_times(model, prompt, steps)
    ]


# The report -----------------------------------------------------------------------------------


def set_device(where: Where) -> None:
    """Compute on a device from now on.

    Raises:
        UserError: there is no GPU that MLX reaches by CUDA.
    """
    if where == "cpu":
        mx.set_default_device(mx.cpu)
    elif device.backend() != "cuda":
        raise UserError(
            f"MLX's backend is {device.backend()}, expected cuda: mlx[cuda13] and one of NVIDIA's "
            "GPUs, or --device cpu for a dry run"
        )


COLUMNS = {
    "model": "{model}",
    "method": "{method}",
    "ms a step": "{step:.2f}",
    "waiting": "{waiting:.2f}",
    "first hand-over": "{first:.2f}",
    "last": "{last:.2f}",
    "of mlx_lm's step": "{share:.2f}",
}


def markdown(
    tested: dict[str, Any], rows: Sequence[dict[str, Any]], facts: dict[str, str]
) -> list[str]:
    """The lines of the report."""
    kind = "This is CUDA and not Metal: no figure here is one of a Mac."
    if facts["backend"] == "cpu":
        kind = "This is a dry run on a CPU: it shows that the command works, and no figure counts."
    plain = {row["model"]: row["step"] for row in rows if row["method"] == MLX_LM}
    for row in rows:
        base = plain.get(row["model"])
        row["share"] = row["step"] / base if base and row["step"] else None
    counts = ", ".join(f"{count} {name}" for name, count in sorted(tested["counts"].items()))
    lines = [
        f"**{kind}**",
        "",
        f"{measured_on(facts)}; {facts['gpu']}; attention: {facts.get('attention', 'the CPU')}; "
        f"{facts['commit']}.",
        "",
        f"The suite: {counts or 'nothing was run'}; {len(tested['near_ties'])} near-ties.",
        "",
    ]
    for title in ("failures", "near_ties"):
        if tested[title]:
            words = {"failures": "failed", "near_ties": "near-tie"}
            shown = [{"test": test, "said": said} for test, said in tested[title]]
            cells = (table({words[title]: "{test}", "what it said": "{said}"}, shown), [""])
            lines += [line for part in cells for line in part]
    return [*lines, *table(COLUMNS, rows)]


def main(
    where: Where = option("gpu", choice("gpu", "cpu"), "cpu: a dry run.", "--device"),
    models: str = option(
        f"{DEMONSTRATION},16x2048", TEXT, "demonstration, and sizes of random Llamas."
    ),
    tests: str = option("tests", TEXT, "Arguments of pytest, or nothing."),
    steps: int = option(40, integer(1), "Steps of each method that are timed."),
    output: Path = OUTPUT,
) -> None:
    """Run the suite and time steps on MLX's CUDA backend."""
    names = [name for name in models.split(",") if name]
    for name in names:
        if name != DEMONSTRATION:
            Size.parse(name)
    before = mx.default_device()
    set_device(where)
    facts = device.describe() | {"gpu": _gpu_name(where), "commit": commit()}
    mx.set_default_device(before)
    tested: dict[str, Any] = {"counts": {}, "failures": [], "near_ties": []}
    if tests.split():
        tested = in_own_process(suite, where, tests.split())
    rows: list[dict[str, Any]] = []
    for name in track(names, "steps"):
        rows += in_own_process(rows_of_model, where, name, steps)
    name = "cuda" if where == "gpu" else "cuda-dry-run"
    values = {"facts": facts, "suite": tested, "rows": rows}
    print(write_report(output, name, values, markdown(tested, rows, facts)))


def _gpu_name(where: Where) -> str:
    name = mx.device_info(getattr(mx, where)).get("device_name", "unknown")
    return f"GPU: {name}" if where == "gpu" else "no GPU"


if __name__ == "__main__":
    program(main)()
