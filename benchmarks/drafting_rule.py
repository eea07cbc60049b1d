"""Which constants of the drafting rule matter? The rule simulated on recorded texts.

    python -m benchmarks.drafting_rule             # typed dev texts
    python -m benchmarks.drafting_rule --items 24 --output /tmp/rule

Greedy text is the same whatever is drafted (ARCHITECTURE.md), and a stream's guesses depend on
nothing but the text before them. So each text is decoded once, one token a step, with what the
streams guess behind every token; on that the rule itself (``drafting.rule``) plans step by step,
with its constants as they are and with one of them changed. Time is counted by two cost curves that
are assumed, so that no figure depends on the machine: rows as dear as on two cores of a Linux
machine, and rows that cost little, as where reading the weights takes most of a step. A pipelined
plain step whose call ahead is under way when drafting begins is taken, as in the loop.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from specstream_mlx import SpeculativeModel, UserError
from specstream_mlx.drafting import Planner, calibration, ngram, rule, settings
from specstream_mlx.drafting.cost import Place, StepCosts
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.drafting.rule import RulePlanner, new_history, places_of
from specstream_mlx.drafting.settings import DraftSettings, Proposers
from specstream_mlx.engine.guess import NO_GUESSES, StreamGuesses
from specstream_mlx.engine.plan import NOTHING_VERIFIED, DraftTree, Plan, Verified, root_only
from specstream_mlx.kv_store import PromptCache
from specstream_mlx.options import most_tokens
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode
from specstream_mlx.stream_config import StreamConfig
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .answers import FAR
from .report import OUTPUT, measured_on, table, write_report
from .runner import Base, streams_of
from .texts import INSTRUCTIONS, PROSE, WRITERS, Texts, adapter_of, texts_a_task

VARIANTS: dict[str, tuple[Any, str, Any]] = {
    "memory of r: 32 tokens": (rule, "RATE_MEMORY", 32.0),
    "memory of r: 512 tokens": (rule, "RATE_MEMORY", 512.0),
    "r starts at 1 in shared mode": (rule, "SHARED_RATE", 1.0),
    "r starts at 2 in shared mode": (rule, "SHARED_RATE", 2.0),
    "v: 4 steps": (rule, "VALUE_MEMORY", 4),
    "v: 32 steps": (rule, "VALUE_MEMORY", 32),
    "its start in a text weighs 4": (rule, "VALUE_WEIGHT", 4),
    "its start is of 16 steps": (rule, "HISTORY_VALUE_MEMORY", 16),
    "v starts at 0.25": (rule, "VALUE", 0.25),
    "v starts at 1": (rule, "VALUE", 1.0),
    "and weighs 2": (rule, "HISTORY_VALUE_WEIGHT", 2),
    "no trials of streams": (rule, "TRIALS", 0.0),
    "trials: for 0.1% of the tokens": (rule, "TRIALS", 0.001),
    "trials: for 1% of the tokens": (rule, "TRIALS", 0.01),
    "averages start at 0.7": (calibration, "START", 0.7),
    "averages start at 0.9": (calibration, "START", 0.9),
    "averages weigh 4 at first": (calibration, "WEIGHT", 4.0),
    "averages remember 8 guesses": (calibration, "MEMORY", 8.0),
    "averages remember 64 guesses": (calibration, "MEMORY", 64.0),
    "lookup priors .4 .65 .75 .8": (ngram, "PRIORS", (0.0, 0.4, 0.65, 0.75, 0.8)),
    "lookup priors .2 .4 .55 .65": (ngram, "PRIORS", (0.0, 0.2, 0.4, 0.55, 0.65)),
    "lookup prior .5 throughout": (ngram, "PRIORS", (0.0, 0.5, 0.5, 0.5, 0.5)),
    "lookup priors weigh 2": (calibration, "PRIOR_WEIGHT", 2),
    "lookup priors weigh 12": (calibration, "PRIOR_WEIGHT", 12),
    "lookup remembers 16": (calibration, "LOOKUP_MEMORY", 16),
    "lookup to depth 6": (settings, "USUAL", Proposers(lookup_size=6)),
    "lookup of 3-grams": (settings, "USUAL", Proposers(lookup_ngram=3)),
    "8 nodes at most": (rule, "MOST_NODES", 8),
    "nodes above 0.1": (rule, "LEAST", math.log(0.1)),
}
"""What is changed, one constant at a time."""

ROW = 0.02
"""A row where rows cost little, in plain steps."""

FIRST: dict[Place, float] = {"plain": 1.0, "none": 1.05, "beside 1": 1.15, "beside": 1.15}
"""Steps of one row there, by the place of the streams."""


@dataclass(frozen=True)
class Recording:
    """A prompt, what the target wrote behind it, and what the streams guessed.

    Attributes:
        prompt: token ids.
        tokens: (n,) what was generated.
        guesses: for each of ``tokens``, the streams' for those behind it.
    """

    prompt: Sequence[int]
    tokens: list[int]
    guesses: list[StreamGuesses]


class _Recorder(Planner):
    """Plans one token a step with all streams."""

    def __init__(self, streams: StreamConfig) -> None:
        self._plan_of = DraftSettings(tree_width=rule.WIDTH).plans(streams)
        self.guesses: list[StreamGuesses] = []

    def first(self, root: int) -> Plan:
        return self._plan_of(root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        pass

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        self.guesses.append(guesses)
        return self.first(root)

    def finish(self) -> None:
        pass


def record(
    model: SpeculativeModel,
    prompt: Sequence[int],
    max_tokens: int,
    end_tokens: Sequence[int],
    prompt_cache: PromptCache | None = None,
) -> Recording:
    """Generate greedily, one token a step; rows that ``prompt_cache`` holds are not read again."""
    recorder, tokens = _Recorder(streams_of(model).config), []
    request = Request(
        prompt,
        recorder,
        max_tokens=max_tokens,
        end_tokens=end_tokens,
        prompt_cache=prompt_cache,
    )
    for step in decode(model, request):
        tokens += step.tokens
    return Recording(prompt, tokens, recorder.guesses)


def simulate(texts: Sequence[Recording], costs: StepCosts, streams: StreamConfig) -> list[float]:
    """Tokens in the time of a plain step, text by text, with one history for all of them."""
    history, usual, worth = new_history(costs, streams), settings.USUAL, []
    for text in texts:
        proposers = [make(Material(text.prompt)) for make in usual.makers]
        worth.append(_simulate_one(text, RulePlanner(history, streams, 1 << 30, proposers)))
    return worth


def assumed(streams: StreamConfig) -> dict[str, StepCosts]:
    """Costs by what rows cost; none of them are to be measured."""
    dear, little = (StepCosts(Path(os.devnull), {}, places_of(streams)) for _ in range(2))
    points = {
        place: tuple((nodes, FIRST[place] + ROW * (nodes - 1)) for nodes, _ in known)
        for place, known in dear.curve.points.items()
    }
    little.curve = replace(little.curve, points=points)
    for costs in (dear, little):
        costs.curve = replace(costs.curve, spread=0.0, measured=math.inf)
    return {"dear rows": dear, "cheap rows": little}


def _simulate_one(text: Recording, drafting: RulePlanner) -> float:
    curve = drafting.history.costs.curve
    at, time, ahead = 0, 0.0, False  # the first step counts as the prompt's
    plan = drafting.first(text.prompt[-1])
    drafting.accept(plan, text.tokens[:1], None)
    plan = drafting.plan(text.tokens[0], text.guesses[0])
    while at < len(text.tokens) - 1:
        taken = plan
        if ahead and not plan.pipelined:  # the call under way is used
            taken = Plan(root_only(text.tokens[at]), "plain")
        ahead = plan.pipelined
        place = drafting.place_of(taken)
        time += curve.seconds(place, len(taken.tree)) / curve.plain
        last = accepted_node(taken.tree, text.tokens[at + 1 : -1])  # the last token is no draft
        start, at = at + 1, min(at + 1 + int(taken.tree.depths[last]), len(text.tokens) - 1)
        drafting.accept(taken, text.tokens[start : at + 1], None)
        if at == len(text.tokens) - 1:
            break
        guessed = place == "beside" or (
            place == "beside 1" and last == taken.tree.likeliest_last(1)[0]
        )
        plan = drafting.plan(text.tokens[at], text.guesses[at] if guessed else NO_GUESSES)
    return (len(text.tokens) - 1) / time


def accepted_node(tree: DraftTree, following: Sequence[int]) -> int:
    """The deepest node whose path is how ``following`` begins."""
    node = 0
    children = {
        (parent, token): child
        for child, (parent, token) in enumerate(
            zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        )
    }
    for token in following:
        below = children.get((node, token))
        if below is None:
            break
        node = below
    return node


@contextmanager
def changed(name: str | None) -> Iterator[None]:
    """The rule with one of ``VARIANTS``."""
    if name is None:
        yield
        return
    module, constant, value = VARIANTS[name]
    before = getattr(module, constant)
    setattr(module, constant, value)
    try:
        yield
    finally:
        setattr(module, constant, before)


Recorded = Mapping[tuple[str, str, str], list[Recording]]
"""By writer, set of texts and kind of text."""


def rates_of(
    recorded: Recorded, streams: Mapping[str, StreamConfig], alone: bool = False
) -> dict[str, tuple[float, float | None]]:
    """By writer, texts and costs: the geometric mean over kinds of texts, and the least of a text.

    Texts of fewer than ``FAR`` tokens do not count as the least.
    """
    means: dict[str, list[float]] = defaultdict(list)
    far: dict[str, list[float]] = defaultdict(list)
    for (writer, texts, _), recordings in recorded.items():
        for rows, costs in assumed(streams[writer]).items():
            runs = [[text] for text in recordings] if alone else [recordings]
            rates = [rate for run in runs for rate in simulate(run, costs, streams[writer])]
            key, pairs = f"{writer}, {texts}, {rows}", zip(rates, recordings, strict=True)
            means[key].append(geometric_mean(rates))
            far[key] += [rate for rate, text in pairs if len(text.tokens) >= FAR]
    return {key: (geometric_mean(some), min(far[key], default=None)) for key, some in means.items()}


def main(
    items: int = texts_a_task(12),
    max_tokens: int = most_tokens(64, least=2),
    output: Path = OUTPUT,
) -> None:
    """Simulate the drafting rule with each of its constants changed."""
    from specstream_mlx import demonstration

    base = Base(demonstration.base_path(), max_tokens, fastest_baseline=False)
    recorded: dict[tuple[str, str, str], list[Recording]] = {}
    streams: dict[str, StreamConfig] = {}
    jobs = [(writer, name) for writer in WRITERS for name in (*INSTRUCTIONS, PROSE)]
    for writer, name in track(jobs, "Recording"):
        mounted = base.mount(adapter_of(name, writer))
        decoded = Texts("dev", items).of_task(mounted.model, base.tokenizer, name)
        prompts = [text.prompt for text in decoded]
        model, ends = mounted.model, base.tokenizer.eos_token_ids
        streams[writer] = streams_of(model).config
        found = [record(model, prompt, max_tokens, ends) for prompt in prompts]
        recorded[writer, "prose" if name == PROSE else "dev", name] = [
            text for text in found if len(text.tokens) > 7
        ]
    recorded = {key: texts for key, texts in recorded.items() if texts}
    if not recorded:
        raise UserError("no text got eight tokens, expected one that can be drafted for")
    usual, alone = (rates_of(recorded, streams, alone) for alone in (False, True))
    columns = {"constant": "{constant}"}
    columns |= {key: f"{{values[{place}]}}" for place, key in enumerate(usual)}
    means, least = (
        ["-" if rate is None else f"{rate:.3f}" for rate in some]
        for some in zip(*usual.values(), strict=True)
    )
    rows = [
        {"constant": "as it is", "values": means},
        {"constant": f"least text of {FAR} tokens", "values": least},
        {"constant": "each text alone", "values": [f"{mean:.3f}" for mean, _ in alone.values()]},
    ]
    for name in track(VARIANTS, "Simulating"):
        with changed(name):
            other = rates_of(recorded, streams)
        shares = [f"{100 * (other[key][0] / usual[key][0] - 1):+.1f}%" for key in usual]
        rows.append({"constant": name, "values": shares})
    facts = base.facts() | {"items": items, "max_tokens": max_tokens}
    lines = [
        f"{measured_on(facts)}; {items} texts a task, at most {max_tokens} tokens each. "
        "First lines: tokens in the time of a plain step, the geometric mean over texts and tasks, "
        "the least, and the mean if each text is one of a program of its own; then what changes in "
        "the mean of texts that follow each other.",
        "",
        *table(columns, rows),
    ]
    print(write_report(output, "drafting-rule", {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
