"""The cost of one decoding step, against the bare forwards of the same rows.

    python -m benchmarks.step_cost                  # the demonstration model
    python -m benchmarks.step_cost --adapter sql --steps 60
    python -m benchmarks.step_cost --random-llama 8x1024    # random weights, untrained streams
    python -m benchmarks.step_cost --model DIR --streams DIR    # a model of yours
    python -m benchmarks.step_cost --graphs         # what the host does; nothing is computed
    python -m benchmarks.step_cost --graphs --no-timing         # on a busy machine

A step over n nodes sends n rows through the lower layers, the kept nodes and their streams through
the MSA layers and a few rows through the head; see ``bare_forwards`` for what it is divided by.
It is the decoding loop itself that is timed, by the clock between two of its steps: a step reads
a call, commits its rows, grows the next tree and enqueues the next call. The bare forwards run
behind each text of some steps, over the same rows behind the same tokens. ``overhead`` is the share
of a step beyond its bare forwards, ``products`` what the model's own products with weights take.
What a step does with its time, ``specstream-mlx generate --profile`` says; what it costs the host,
the operations it hands over and the bytes they read, ``--graphs`` (``step_graphs``).

``plain decoding`` compares loops: ``stream_generate`` without drafts, milliseconds a token, against
mlx_lm's in interleaved pairs.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import DraftSettings, SpeculativeModel, UserError, bundled, demonstration, load
from specstream_mlx.hardware import device
from specstream_mlx.loop import Request, decode
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import FLAG, PATH, TEXT, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .bare_forwards import BareForwards
from .random_llama import Size, random_llama, with_streams
from .report import OUTPUT, machine_suffix, measured_on, table, write_report
from .runner import (
    MLX_LM,
    Mounted,
    fixed_ways,
    interleaved,
    streams_of,
)
from .step_graphs import SHAPES, report
from .step_rows import PLAIN_ROWS, StepRows, rows_of
from .texts import INSTRUCTIONS, Texts, shared_adapters

PLAIN_TOKENS = 48
WARM_UP = 2
"""Steps of a text that are not timed: its first trees are smaller, and their shapes are new."""


@dataclass
class Times:
    """Milliseconds of every timed step of one method."""

    step: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    products: list[float] = field(default_factory=list)


def measure(
    model: SpeculativeModel, prompts: list[list[int]], settings: DraftSettings, steps: int
) -> tuple[Times, StepRows]:
    """Time the decoding loop on each prompt, and behind it the bare forwards of the same rows."""
    times = Times()
    rows = PLAIN_ROWS
    for prompt in prompts:
        decoded: list[tuple[StepRows, list[int]]] = []
        before = time.perf_counter()
        for step in islice(decode(model, Request(prompt, settings)), steps):
            now = time.perf_counter()
            if len(decoded) >= WARM_UP:
                times.step.append(1e3 * (now - before))
            decoded.append((rows_of(step.plan), step.tokens))
            before = time.perf_counter()
        bare = BareForwards(model.model, streams_of(model).config.first_msa_layer, prompt[:-1])
        newest = prompt[-1]
        for number, (rows, tokens) in enumerate(decoded):
            if number >= WARM_UP:
                times.bare.append(1e3 * bare.seconds(rows))
            bare.extend([newest, *tokens[:-1]])
            newest = tokens[-1]
        times.products += [1e3 * bare.products(rows) for rows, _ in decoded[WARM_UP:]]
    return times, rows


def plain_decoding(
    model: SpeculativeModel, tokenizer: TokenizerWrapper, prompts: list[list[int]]
) -> dict[str, float]:
    """Milliseconds a token of both plain loops, in at least six interleaved pairs."""
    mounted = Mounted(model, model.model, tokenizer, PLAIN_TOKENS)
    ways = {MLX_LM: mounted.mlx_lm(), "ours": mounted.ours(DraftSettings(num_streams=0))}
    found = interleaved(prompts, ways, rounds=math.ceil(6 / len(prompts)))
    ours, plain = (found.figures(name, MLX_LM) for name in ("ours", MLX_LM))
    return {
        "ours": round(1e3 / ours["decode_tps"], 2),
        "mlx_lm": round(1e3 / plain["decode_tps"], 2),
        "rate_ratio": ours["speedup"],
    }


def row(name: str, adapter: str, times: Times, rows: StepRows) -> dict[str, Any]:
    """One line of the table."""
    ratio = statistics.median(s / b for s, b in zip(times.step, times.bare, strict=True))
    medians = {key: round(statistics.median(values), 2) for key, values in vars(times).items()}
    line = {"adapter": adapter, "method": name, **asdict(rows), **medians, "ratio": round(ratio, 3)}
    return line | {"overhead": round(1 - 1 / ratio, 3)}


COLUMNS = {
    "adapter": "{adapter}",
    "method": "{method}",
    "rows: lower / MSA / head / deferred": "{lower} / {upper} / {all_heads} / {deferred}",
    "step": "{step:.1f}",
    "bare forwards": "{bare:.1f}",
    "step / bare": "{ratio:.2f}",
    "overhead": "{overhead:.0%}",
    "products": "{products:.1f}",
}


def markdown(
    rows: list[dict[str, Any]], plain: dict[str, float], facts: dict[str, str]
) -> list[str]:
    """The lines of the report."""
    shown = [row | {"all_heads": " + ".join(map(str, row["heads"]))} for row in rows]
    return [
        f"{measured_on(facts)}. Milliseconds, medians.",
        "",
        *table(COLUMNS, shown),
        "",
        f"Plain decoding, ms a token: {plain['ours']:.2f} here, {plain['mlx_lm']:.2f} by "
        f"mlx_lm.stream_generate; rate / mlx_lm's {plain['rate_ratio']:.2f}.",
    ]


def with_adapters(
    base: SpeculativeModel, adapters: Sequence[Path]
) -> Iterator[tuple[str, SpeculativeModel]]:
    """The base with one adapter after the other, lossless streams first."""
    for path in adapters:
        base.swap_adapter(path)
        yield path.name, base


def check_both(model: Path | None, streams: Path | None) -> None:
    """Check that a model of one's own comes with its streams.

    Raises:
        UserError: one was given without the other.
    """
    if (model is None) != (streams is None):
        raise UserError("found one of --model and --streams, expected both or none")


def main(
    adapter: str | None = option(
        None,
        TEXT,
        "A shared adapter: a bundled one's name, or a directory; without --model one.",
    ),
    model_path: Path | None = option(
        None, PATH, "MLX model directory; the demonstration model.", "--model"
    ),
    streams: Path | None = option(None, PATH, "Lossless streams of --model; the bundled ones."),
    random: str | None = option(
        None,
        TEXT,
        "Instead of these a Llama with random weights, such as 8x1024.",
        "--random-llama",
        metavar="LAYERSxHIDDEN",
    ),
    vocabulary: int | None = option(
        None, integer(1), "Tokens of the random Llama. Default: the model's."
    ),
    items: int = option(4, integer(1), "Prompts per method."),
    steps: int = option(24, integer(4), "Steps per prompt."),
    graphs: bool = option(False, FLAG, "Only: host time, operations and bytes of three models."),
    timing: bool = option(True, FLAG, "With --graphs: time nothing."),
    output: Path = OUTPUT,
) -> None:
    """Measure a step against the bare forwards of the same rows."""
    if graphs:
        print(report(list(SHAPES), steps if timing else 0, output))
        return
    size = random and Size.parse(random)
    check_both(model_path, streams)
    base_path = model_path or demonstration.base_path()
    base, tokenizer = load(base_path)
    least = base.config["vocab_size"]
    if vocabulary is not None and vocabulary < least:
        raise UserError(f"--vocabulary is {vocabulary}, expected at least the model's {least}")
    adapters = [streams or bundled.streams_path()]
    if adapter is None and model_path is None:
        adapter = next(iter(shared_adapters()), None)
    if adapter in bundled.adapter_names():
        adapters.append(bundled.adapter_path(adapter))
    elif adapter:
        adapters.append(Path(adapter))
    for path in adapters:  # what does not fit is refused before anything is timed
        base.swap_adapter(path)
    task = adapter if adapter in INSTRUCTIONS else "sql"
    prompts = [text.prompt for text in Texts("test", items).of_task(base, tokenizer, task)]
    models = with_adapters(base, adapters)
    if size:
        models = with_streams(*random_llama(size.layers, size.hidden, vocabulary or least))
    rows: list[dict[str, Any]] = []
    plain: dict[str, float] = {}
    for name, model in models:
        if not plain:  # lossless comes first
            plain = plain_decoding(model, tokenizer, prompts)
        for method, settings in track(
            fixed_ways(streams_of(model).config).items(), f"steps, {name}"
        ):
            rows.append(row(method, name, *measure(model, prompts, settings, steps)))
    facts = device.describe()
    summary = {"facts": facts, "rows": rows, "plain_decoding": plain}
    name = f"step-cost-{f'random-{random}-' if random else ''}{machine_suffix(facts)}"
    name += f"-{base_path.resolve().name}" if model_path else ""
    print(write_report(output, name, summary, markdown(rows, plain, facts)))


if __name__ == "__main__":
    program(main)()
