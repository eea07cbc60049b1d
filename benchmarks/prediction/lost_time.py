"""How much time does the rule lose on a Mac by what it believes of the costs of steps?

    python -m benchmarks.prediction.lost_time     # a minute or two on one core

Recorded texts are replayed on machines whose true costs are those of ``metal_cost``, by the
runtime's own planner and cost curves; timings are noisy. What is lost is time over that of the same
planner with the true costs, which is the best that it can do:

- *interpolated*: 1, 2, 4, 8 and 16 nodes are timed, as on a CPU, whatever the text's length;
- *by kernels*: as on a GPU, with the prediction for this very chip;
- *other clocks*: the same, on a machine whose arithmetic is a fifth faster and whose memory a fifth
  slower than the prediction says;
- *another chip*: the same, with the prediction for a chip of another generation.

``first`` is the loss on the texts in which steps are timed, those that timing takes included,
``later`` that on the same texts once the costs are known.
"""

import math
import random
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from specstream_mlx import bundled
from specstream_mlx.drafting.ngram import Lookup
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.drafting.rule import RulePlanner, new_history, places_of
from specstream_mlx.drafting.settings import Guessing
from specstream_mlx.drafting.step_costs import CostCurve, StepCosts
from specstream_mlx.drafting.typical_costs import ON_CPU, Place, TypicalCosts, on_gpu, predicted
from specstream_mlx.engine.guess import NO_GUESSES
from specstream_mlx.engine.plan import Plan, root_only
from specstream_mlx.files import read_json
from specstream_mlx.hardware.apple_chips import Chip, chip
from specstream_mlx.hardware.metal_cost import Bits, Shape
from specstream_mlx.options import integer, number, option
from specstream_mlx.stream_config import StreamConfig
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..report import OUTPUT, table, write_report
from .recorded_texts import RecordedText, read

CHIPS = {"M1": "M4", "M2 Pro": "M4 Pro", "M3 Max": "M1 Max", "M4 Pro": "M2 Pro", "M5 Max": "M3 Max"}
"""Chips, and those of another generation whose prediction is believed instead."""

MODELS = (
    Shape("Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936),
    Shape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152),
)
"""The figures of their ``config.json``."""

BITS: Bits = 4
CONTEXTS = (512, 16384)
READINGS = 4
"""Times that the texts are read while steps are timed."""

Costs = dict[Place, list[float]]
"""Seconds of steps of 1, 2, .. nodes."""


@dataclass
class Replayed:
    """A machine on which a planner's steps take their true time."""

    costs: Costs
    noise: float
    rng: random.Random
    seconds: float = 0.0

    def run(self, planner: RulePlanner, text: RecordedText) -> None:
        """Replay a text as the scheduler would: after a plain step the next one runs already."""
        planned, position, ahead = planner.first(text.prompt[-1]), 0, False
        root, first = text.prompt[-1], True
        while position < len(text.tokens):
            plan = Plan(root_only(root), "plain") if ahead else planned
            ahead = planned.pipelined
            path = accepted(plan, text.tokens[position:])
            place, tree = planner.place_of(plan), plan.tree
            seconds = self.costs[place][len(tree) - 1]
            self.seconds += seconds
            tokens = text.tokens[position : position + len(path)]
            timed = seconds * math.exp(self.rng.gauss(0, self.noise))
            planner.accept(plan, tokens, None if first else timed)
            position, root, first = position + len(tokens), tokens[-1], False
            guessed = plan.width and (plan.stream_nodes is None or path[-1] in streamed(plan))
            planned = planner.plan(root, text.guesses[position - 1] if guessed else NO_GUESSES)
        planner.finish()


def accepted(plan: Plan, following: Sequence[int]) -> list[int]:
    """Return the accepted nodes, the root first."""
    tree, path = plan.tree, [0]
    for token in following:
        children = [n for n in range(1, len(tree)) if tree.parents[n] == path[-1]]
        right = [node for node in children if tree.tokens[node] == token]
        if not right:
            break
        path += right
    return path


def streamed(plan: Plan) -> Iterable[int]:
    """Return the nodes beside which streams run."""
    few = plan.stream_nodes or len(plan.tree)
    if few >= len(plan.tree):
        return range(len(plan.tree))
    nodes: list[int] = plan.tree.likeliest_last(few).tolist()
    return nodes


@dataclass(frozen=True)
class Case:
    model: Shape
    context: int
    streams: Guessing
    texts: Sequence[RecordedText]
    noise: float
    seed: int

    def true_costs(self, machine: Chip) -> Costs:
        costs = predicted(machine, self.model, BITS, self.streams, self.context)
        return {place: [1e-3 * ms for ms in row] for place, row in costs.items()}

    def seconds(
        self, true: Costs, typical: Sequence[TypicalCosts], known: bool = False
    ) -> list[float]:
        """Return the seconds of each reading of the texts; ``known``: by the true costs."""
        places, readings = places_of(self.streams), []
        with tempfile.TemporaryDirectory() as directory:
            path = None if known else Path(directory) / "costs.json"
            costs = StepCosts(path, {}, places, typical)
            if known:
                points = {place: tuple(enumerate(true[place], start=1)) for place in places}
                costs.behind(self.context).curve = CostCurve(points, spread=0.0)
            history = new_history(costs, self.streams)
            for reading in range(READINGS + 1):
                machine = Replayed(true, self.noise, random.Random(self.seed + reading))
                for text in self.texts:
                    proposers = [Lookup(Material(text.prompt))]
                    facts = self.model.vocab, proposers, self.context
                    machine.run(RulePlanner(history, self.streams, *facts), text)
                readings.append(machine.seconds)
        return readings


def streams_of(model: Shape) -> StreamConfig:
    """Return streams as the demonstration model has them, in a model of other sizes."""
    adapter = read_json(bundled.streams_path() / "adapter_config.json")
    streams = StreamConfig.from_dict(adapter["speculative_streaming"])
    return replace(streams, hidden_size=model.hidden, num_hidden_layers=model.layers)


def lost(case: Case, name: str) -> dict[str, dict[str, float]]:
    """Return the shares of time that are lost by what is believed, first and later."""
    here, other = chip(name), chip(CHIPS[name])
    off = replace(here, clock=1.2 * here.clock, bandwidth=0.8 * here.bandwidth)
    predictions = {
        "interpolated": (here, ON_CPU),
        "by kernels": (here, on_gpu(here, case.model, BITS, case.streams)),
        "other clocks": (off, on_gpu(here, case.model, BITS, case.streams)),
        "another chip": (here, on_gpu(other, case.model, BITS, case.streams)),
    }
    found, best = {}, dict[Chip, list[float]]()
    for curve, (machine, typical) in predictions.items():
        true = case.true_costs(machine)
        if machine not in best:
            best[machine] = case.seconds(true, ON_CPU, known=True)
        pairs = zip(case.seconds(true, typical), best[machine], strict=True)
        *timed, later = (spent / least - 1 for spent, least in pairs)
        found[curve] = {"first": statistics.fmean(timed), "later": later}
    return found


def main(
    *,
    noise: float = option(0.1, number(0), "Standard deviation of a timing, as a share of it."),
    seed: int = option(0, integer(0), "Of the noise."),
    output: Path = OUTPUT,
) -> None:
    """Replay recorded texts on predicted Macs, and say what wrong costs lose."""
    rows: list[dict[str, Any]] = []
    texts = list(read())
    cases = list(product(MODELS, CONTEXTS, ("streams and lookup", "lookup"), CHIPS))
    for model, context, drafts, name in track(cases, "machines"):
        streams = streams_of(model) if drafts != "lookup" else None
        case = Case(model, context, streams, texts, noise, seed)
        facts = {"chip": name, "model": model.name, "context": context, "drafts": drafts}
        rows.append(facts | {"lost": lost(case, name)})
    summary = [
        {"curve": curve, "when": when, "losses": [row["lost"][curve][when] for row in rows]}
        for curve, when in product(rows[0]["lost"], ("first", "later"))
    ]
    means = {
        "curve": "{curve}",
        "texts": "{when}",
        "in the mean": "{mean:.1%}",
        "in the worst case": "{worst:.1%}",
    }
    for row in summary:
        row |= {"mean": statistics.fmean(row["losses"]), "worst": max(row.pop("losses"))}
    columns = {name: f"{{{name}}}" for name in ("model", "context", "drafts", "chip")}
    columns |= {
        curve: f"{{lost[{curve}][first]:.1%}} {{lost[{curve}][later]:.1%}}"
        for curve in rows[0]["lost"]
    }
    tokens = sum(len(text.tokens) for text in texts)
    lines = [
        "# Time that the rule loses on predicted Macs",
        "",
        f"{len(texts)} recorded texts of {tokens} tokens, {noise:.0%} of noise on timings: what is "
        "lost against the true costs, in the first readings, in which steps are timed, and later. "
        "`lost_time.py` says what the columns are.",
        "",
        *table(means, summary),
        "",
        *table(columns, rows),
    ]
    values = {"noise": noise, "seed": seed, "summary": summary, "cases": rows}
    print(write_report(output, "lost-time", values, lines))


if __name__ == "__main__":
    program(main)()
