"""What do streams bring where every reduction waits for a cable? A simulation, no measurement.

    python -m benchmarks.studies.cable
    python -m benchmarks.studies.cable --tasks sql --items 1 --max-tokens 16 --output /tmp/cable

Where several processes run a model, a pass waits for two reductions a layer and one for the
verdict, however many rows it has (``tests/distributed/test_costs.py`` counts them). So a delay of
each reduction adds the same time to a plain step and to one that verifies a tree, and drafts that
are right are worth more. Here one process decodes texts as ``studies.drafting_rule`` does, and the
costs of its steps are timed; to each of these the delays of a step's reductions are added, and with
those costs the rule plans the same texts again. What a cable's bandwidth and a divided model's
faster passes change is left out.
"""

import statistics
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from specstream_mlx import UserError, demonstration
from specstream_mlx.drafting.cost import StepCosts
from specstream_mlx.drafting.pace import pace_of
from specstream_mlx.options.generation import most_tokens
from specstream_mlx.stream_config import StreamConfig
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..report import OUTPUT, machine_suffix, measured_on, table, write_report, write_text
from ..runner import Base, measure_costs, streams_of
from ..texts import PROSE, TASKS, WRITERS, Texts, adapter_of, chosen_tasks, texts_a_task
from .drafting_rule import Recording, record, simulate

DELAYS = 0.0, 0.05, 0.2, 0.5, 1.0
"""Milliseconds of a reduction."""

LABEL = "Simulation of a cable, not a measurement"

COLUMNS = {
    "delay of a reduction, ms": "{delay:g}",
    "of a step, ms": "{step:.1f}",
    **{
        name: cell
        for writer in WRITERS
        for name, cell in (
            (f"{writer}: plain, tokens/s", f"{{{writer}_plain:.1f}}"),
            (f"{writer}: with drafts", f"{{{writer}_drafts:.1f}}"),
            (f"{writer}: speedup", f"{{{writer}_speedup:.2f}}x"),
        )
    },
}


def reductions(layers: int) -> int:
    """The reductions of a pass through a divided model: two a layer, and the verdict's."""
    return 2 * layers + 1


def delayed(costs: StepCosts, seconds: float) -> StepCosts:
    """The same costs with so many seconds more in every step, as if timed on a quiet machine."""
    points = {
        place: tuple((nodes, one + seconds) for nodes, one in known)
        for place, known in costs.curve.points.items()
    }
    found = copy(costs)
    found.curve = replace(costs.curve, points=points, spread=0.0)
    return found


def rates(
    texts: Sequence[Recording], costs: StepCosts, streams: StreamConfig
) -> tuple[float, float]:
    """Tokens per second of plain decoding, and how many times as many the rule writes.

    The latter is the geometric mean over texts.
    """
    faster = simulate(texts, costs, streams)
    return 1 / costs.curve.plain, statistics.geometric_mean(faster)


def rows_of(
    texts: Mapping[str, Sequence[Recording]],
    costs: Mapping[str, StepCosts],
    streams: Mapping[str, StreamConfig],
    layers: int,
) -> list[dict[str, Any]]:
    """A row for each delay; texts, costs and streams are by writer."""
    rows = []
    for delay in DELAYS:
        step = delay * reductions(layers)
        row: dict[str, Any] = {"delay": delay, "step": step}
        for writer, recorded in texts.items():
            plain, faster = rates(recorded, delayed(costs[writer], step / 1e3), streams[writer])
            row[f"{writer}_plain"], row[f"{writer}_speedup"] = round(plain, 3), round(faster, 3)
            row[f"{writer}_drafts"] = round(plain * faster, 3)
        rows.append(row)
    return rows


def plot(rows: Sequence[Mapping[str, float]]) -> str:
    """An SVG of speedup against delay, a line for each writer."""
    most = max(row[f"{writer}_speedup"] for row in rows for writer in WRITERS)
    top = max(2.0, 0.5 * -(-most // 0.5))

    def x(delay: float) -> float:
        return 60 + 440 * delay / DELAYS[-1]

    def y(speedup: float) -> float:
        return 270 - 230 * speedup / top

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 320" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="600" height="320" fill="#fff"/>',
        f'<text x="60" y="20">{LABEL}</text>',
        '<text x="60" y="310">delay of each reduction, ms</text>',
        '<text transform="translate(18 210) rotate(-90)">speedup over plain</text>',
    ]
    for tick in range(round(2 * top) + 1):
        at = y(tick / 2)
        parts.append(f'<path d="M60 {at:.1f}H500" stroke="#ddd"/>')
        parts.append(f'<text x="32" y="{at + 4:.1f}">{tick / 2:.1f}</text>')
    for delay in DELAYS:
        parts.append(f'<text x="{x(delay) - 8:.1f}" y="288">{delay:g}</text>')
    for writer, color in zip(WRITERS, ("#0a5bd3", "#c2410c"), strict=True):
        points = [(x(row["delay"]), y(row[f"{writer}_speedup"])) for row in rows]
        line = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        end = points[-1][1] + 4
        parts.append(f'<text x="508" y="{end:.1f}" fill="{color}">{writer}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(
    tasks: str = TASKS,
    items: int = texts_a_task(2),
    max_tokens: int = most_tokens(64, least=2),
    output: Path = OUTPUT,
) -> None:
    """Simulate plain decoding and drafts with a delay in each reduction."""
    kinds = [*chosen_tasks(tasks), *[PROSE] * (not tasks)]
    base = Base(demonstration.base_path(), max_tokens, fastest_baseline=False)
    texts: dict[str, list[Recording]] = {writer: [] for writer in WRITERS}
    costs: dict[str, StepCosts] = {}
    streams: dict[str, StreamConfig] = {}
    jobs = [(writer, name) for writer in WRITERS for name in kinds]
    for writer, name in track(jobs, "Recording"):
        mounted = base.mount(adapter_of(name, writer))
        model, ends = mounted.model, base.tokenizer.eos_token_ids
        chosen = Texts("dev", items).of_task(model, base.tokenizer, name)
        prompts = [text.prompt for text in chosen]
        if writer not in costs:
            costs[writer], streams[writer] = pace_of(model).costs, streams_of(model).config
            if costs[writer].curve.busy:
                costs[writer].forget()
            measure_costs(mounted, prompts)
        found = [record(model, prompt, max_tokens, ends) for prompt in prompts]
        texts[writer] += [text for text in found if len(text.tokens) > 7]
    if not all(texts.values()):
        raise UserError("no text got eight tokens, expected one that can be drafted for")
    layers = len(base.model.layers)
    rows = rows_of(texts, costs, streams, layers)
    facts = base.facts() | {
        "texts": kinds,
        "items": items,
        "max_tokens": max_tokens,
        "reductions": reductions(layers),
        "curves": {writer: vars(one.curve) for writer, one in costs.items()},
    }
    name = f"cable-{machine_suffix(facts)}"
    counts = " and ".join(f"{len(found)} {writer}" for writer, found in texts.items())
    spread = ", ".join(f"{writer} {one.curve.spread:.0%}" for writer, one in costs.items())
    lines = [
        f"**{LABEL}.** {measured_on(facts)}. {counts} texts of the demonstration model, at most "
        f"{max_tokens} tokens each, decoded by one process; spread of its timed steps: {spread}. "
        f"To every step the delay of its {reductions(layers)} reductions is added; what is drafted "
        "is planned by the rule for those costs. Bandwidth, and that each of several processes "
        "computes but its part, is left out.",
        "",
        *table(COLUMNS, rows),
        "",
        f"![Speedup against the delay of a reduction]({name}.svg)",
    ]
    write_text(output / f"{name}.svg", plot(rows))
    print(write_report(output, name, {"label": LABEL, "facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
