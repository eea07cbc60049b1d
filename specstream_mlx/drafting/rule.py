"""The rule: before every step, the tree and the place of the streams that are worth the most.

A step is worth the tokens that it is expected to write, less those that its time is worth, plus
what its streams will be worth to the step after it::

    1 + sum of P(node) - r * cost(nodes, place) + v * q

r is the recent number of tokens per plain step's time, v the amount by which the streams' guesses
have raised this value, and q the chance that streams run at the node accepted last. In a batch, r
and cost are those of the pass, see ``cost``. Only streams that run show what they are worth, so
they run all the same once the loss is a small share (``TRIALS``) of the tokens written without.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..engine.draft_head import HeadConfig
from ..engine.guess import StreamGuesses
from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..engine.plan import LIKELIEST, NOTHING_VERIFIED, DraftTree, Plan, Verified, root_only
from ..engine.verify.rule import VerifyRule
from ..hardware import device
from ..loading.speculative_model import SpeculativeModel
from . import Planner
from .batch_costs import RATE_MEMORY, BatchCosts, Share
from .best_first import LEAST, UNLIKELY, Children, Node, likeliest, tree_of, with_paths
from .calibration import StreamAverages, averaged, pool
from .draft_stats import DraftStats
from .ngram import Lookup
from .proposer import MOST_NODES, MOST_ROWS, WIDTH, Material, Price, Proposer
from .settings import USUAL, Guessing, Proposers
from .step_costs import StepCosts, Timings, directory
from .typical_costs import Place, typical_costs

# "Studied" here and in other files of this folder: recorded texts were decoded with one constant
# changed at a time; benchmarks/NOTES.md has the verdicts, "Which constants of the rule matter?".
SHARED_RATE = 1.5  # start of r in shared mode, in tokens per plain step's time (studied)
VALUE = 0.5  # start of v with an adapter that has not decoded yet, in tokens (studied)
HISTORY_VALUE_WEIGHT = 8  # steps that ``VALUE`` counts as (studied)
HISTORY_VALUE_MEMORY = 64  # steps in the average that a sequence's v starts from (studied)
VALUE_MEMORY = 8  # steps of a sequence that its v averages (studied)
# What texts before were like says little of the next, and one bad guess says little of the others:
# benchmarks/NOTES.md, "Does the rule rest streams that would have paid?".
RATE_WEIGHT = 8.0  # tokens that texts before count as in a sequence's r
VALUE_WEIGHT = 3  # steps that the start of a sequence's v counts as
# Tokens, of each that is written without streams, that may be lost to steps that try them: with
# none, streams that begin a text badly are left out to its end (studied).
TRIALS = 0.0025


@dataclass
class History:
    """Measurements that outlive a sequence: costs of steps, and recent results with one adapter."""

    costs: StepCosts
    tokens: float  # of recent steps
    time: float  # that they took, in plain steps
    value: float  # v of the next sequence, an average over ``valued`` steps
    valued: int

    @property
    def rate(self) -> float:
        """Recent tokens in the time of a plain step; at least 1, a plain step's own."""
        return max(1.0, self.tokens / self.time)

    def begin(self) -> None:
        """Begin the averages of a new text."""
        part = min(1.0, RATE_WEIGHT / self.tokens)
        self.tokens, self.time = self.tokens * part, self.time * part

    def note(self, tokens: int, time: float) -> None:
        """Take in a step's tokens and its time, in plain steps."""
        remaining = max(0.0, 1 - tokens / RATE_MEMORY)
        self.tokens = self.tokens * remaining + tokens
        self.time = self.time * remaining + time


def new_history(costs: StepCosts, streams: Guessing) -> History:
    """Make the history of an adapter that has not decoded yet."""
    shared = streams is not None and streams.mode == "shared"
    time, rate = RATE_MEMORY, SHARED_RATE if shared else 1.0
    return History(costs, rate * time, time, VALUE, HISTORY_VALUE_WEIGHT)


def places_of(streams: Guessing) -> tuple[Place, ...]:
    """List the places that the rule chooses from, the one where streams guess last."""
    return tuple(_plans(streams, 1))


def _plans(streams: Guessing, width: int) -> dict[Place, Callable[[DraftTree], Plan]]:
    """Make the functions that turn a tree into a plan, by place."""
    plans = dict[Place, Callable[[DraftTree], Plan]]()
    plans |= {"plain": partial(Plan, place="plain"), "none": partial(Plan, place="none")}
    if streams is None:
        return plans
    count = streams.num_streams
    run = partial(Plan, streams=count, expand=(LIKELIEST,) * (count - 1))
    if isinstance(streams, HeadConfig):
        return plans | {"head": partial(run, place="head", width=width)}
    if streams.mode == "shared":
        everywhere = partial(run, place="nodes")
        return {"none": everywhere, "nodes": partial(everywhere, width=width)}
    return plans | {"one node": partial(run, place="nodes", width=width, stream_nodes=1)}


class RulePlanner(Planner):
    """A planner by the rule; it updates the history of this model and adapter."""

    def __init__(
        self,
        history: History,
        streams: Guessing,
        vocab_size: int,
        proposers: Sequence[Proposer] = (),
        context: int = 0,
    ):
        drafted = vocab_size if streams is None else streams.draft_vocabulary or vocab_size
        self._plans = _plans(streams, min(WIDTH, drafted))
        self._places = tuple(self._plans)
        self._stream_place: Place | None = None if streams is None else self._places[-1]
        self._context = context  # tokens in the KV cache
        self._weigh(history.costs.behind(context))
        self._timed = 0.0  # seconds of timed steps
        self._vocab_size, self._proposers = vocab_size, proposers
        self.history, self.averages = history, StreamAverages()
        self.value, self._valued = history.value, VALUE_WEIGHT
        self._allowance = 0.0  # tokens that a step with streams may be worth less than another
        self._owed = 0.0  # what of them the planned step takes when it has run
        self._plain_run = self._required = 0  # plain steps in a row; nodes that proposers require
        self._measures = self._turn = False  # whether the planned step is timed, the next may be
        self._count = 1  # sequences of the next pass
        self._share: Share | None = None  # of it, where there are several
        self._draft_stats = DraftStats()
        if self._stream_place is not None:
            self._draft_stats.guesser = "draft head" if self._stream_place == "head" else "streams"
        history.begin()

    def _weigh(self, timings: Timings) -> None:
        """Take the costs of steps from here."""
        self._timings = timings
        timings.refresh()
        self._cost = {place: timings.relative(place) for place in self._places}

    def first(self, root: int) -> Plan:
        """Plan a step without drafts, in which streams run if there are any."""
        return self._plans[self._stream_place or "plain"](root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        for proposer in self._proposers:
            proposer.accept(tokens)
        self.averages.accept(tokens)
        place, nodes = self.place_of(plan), len(plan.tree)
        self._plain_run = self._plain_run + 1 if place == "plain" else 0
        self._draft_stats.steps += 1
        if place == self._stream_place:
            self._note_guessing(nodes)
            self._allowance -= self._owed
        else:
            self._allowance += TRIALS * len(tokens)
        spent = sum(proposer.spent() for proposer in self._proposers)
        timings, measured = self._timings, False
        if self._measures and seconds is not None and (place, nodes) == timings.wanted():
            # Of a run of plain steps, one is timed whose neighbours are pipelined, too.
            measured = place != "plain" or self._plain_run >= 2
            if measured:
                timings.note(max(seconds - spent, 1e-9))
                self._timed += seconds
                self._cost = {place: timings.relative(place) for place in self._places}
        self._turn = not measured and seconds is not None  # in a batch nothing is timed
        if not measured and self._share is None:
            curve = timings.curve
            drafting = 0.0 if curve.spread is None else spent / curve.plain
            self.history.note(len(tokens), self._cost[place][min(nodes, MOST_ROWS)] + drafting)
        self._context += len(tokens)
        timings = self.history.costs.behind(self._context)
        if timings is not self._timings:
            self._weigh(timings)

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        self.averages.take(guesses)
        curve, rate, cost = self._timings.curve, self.history.rate, self._cost["none"]
        row = rate * (cost[MOST_NODES] - cost[2]) / (MOST_NODES - 2)
        price = Price(rate, row, None if curve.spread is None else curve.plain)
        for proposer in self._proposers:
            proposer.begin(verified, price)
        paths = [path for proposer in self._proposers for path in proposer.required()]
        self._required = len(with_paths((), paths))
        nodes = self._likeliest(pool(self._proposers, self.averages.after))
        self._share = self._share_of(nodes)
        if guesses.depth and self._stream_place is not None:
            without = self._likeliest(pool(self._proposers))
            best, alone = (max(self._choices(drafts).values()) for drafts in (nodes, without))
            gain = max(0.0, best[0] - alone[0])
            self._draft_stats.worth += gain
            history = self.history
            self.value, self._valued = averaged(self.value, self._valued, gain, VALUE_MEMORY)
            history.value, history.valued = averaged(
                history.value, history.valued, gain, HISTORY_VALUE_MEMORY
            )
        self._measures, self._owed = False, 0.0
        kind = self._timings.wanted()
        turn = self._turn and self._timed < self._timings.typical.seconds
        if kind is not None and turn and kind[0] in self._places:
            self._measures, drafts = True, kind[1] - 1
            timed = _filled(nodes[:drafts], drafts, self._vocab_size)
            return self._plans[kind[0]](tree_of(root, timed))
        place, count = self._chosen(nodes)
        return self._plans[place](tree_of(root, with_paths(nodes[:count], paths)))

    @property
    def draft_stats(self) -> DraftStats:
        curve, averages = self._timings.curve, self.averages
        lookups = [lookup for lookup in self._proposers if isinstance(lookup, Lookup)]
        return replace(
            self._draft_stats,
            timed=None if curve.spread is None else "busy" if curve.busy else "quiet",
            right=averages.right,
            guessed=averages.judged,
            lookup_right=sum(lookup.right for lookup in lookups),
            lookup_guessed=sum(lookup.judged for lookup in lookups),
        )

    def _note_guessing(self, nodes: int) -> None:
        """Record the cost of the guesses of a step of so many nodes."""
        assert self._stream_place is not None
        rate, costs = self._prices()
        without: Place = "plain" if nodes == 1 and "plain" in self._places else "none"
        nodes = min(nodes, MOST_ROWS)
        more = costs[self._stream_place][nodes] - costs[without][nodes]
        self._draft_stats.guessing += 1
        self._draft_stats.cost += more / costs[self._places[0]][1]
        self._draft_stats.price += more * rate

    def share_pass(self, count: int) -> BatchCosts:
        self._count = count
        return self.history.costs.batches

    def finish(self) -> None:
        self.history.costs.save()
        for proposer in self._proposers:
            proposer.finish()

    def place_of(self, plan: Plan) -> Place:
        """Return the place of the streams in a step that was planned here."""
        if plan.pipelined:
            return "plain"
        return self._places[-1] if plan.width else "none"

    def _share_of(self, nodes: Sequence[Node]) -> Share | None:
        """This sequence's share of the next pass; ``None``: it is alone."""
        if self._count < 2:
            return None
        costs, curve = self.history.costs.batches, self._timings.curve
        costs.note_gains(self._count, [math.exp(node.score) for node in nodes])
        guessing = self._stream_place or "none"
        return costs.share(self._count, (curve.line("none"), curve.line(guessing)))

    def _likeliest(self, children: Children) -> list[Node]:
        """List the most probable nodes for which there is room, in order of probability."""
        count = max(1, MOST_NODES - 1 - self._required)
        return list(islice(likeliest(children, LEAST), count))

    def _chosen(self, nodes: Sequence[Node]) -> tuple[Place, int]:
        """Choose the best place, or the streams' place if the allowance covers the loss."""
        choices = self._choices(nodes)
        place = max(choices, key=lambda name: choices[name][0])
        if self._stream_place is not None:
            # All sequences of a pass wait for the guesses, and get some.
            loss = self._count * (choices[place][0] - choices[self._stream_place][0])
            if loss <= self._allowance:
                self._owed, place = loss, self._stream_place
        return place, choices[place][1]

    def _prices(self) -> tuple[float, dict[Place, list[float]]]:
        """Return r, and the costs by place and nodes, of the next pass."""
        if self._share is None:
            return self.history.rate, self._cost
        costs = {place: self._share.costs[place == self._stream_place] for place in self._places}
        return self._share.rate, costs

    def _choices(self, nodes: Sequence[Node]) -> dict[Place, tuple[float, int]]:
        """Return the best value and its number of nodes by place, over all beginnings."""
        (rate, cost), places, required = self._prices(), self._places, self._required
        if required:
            places = tuple(place for place in places if place != "plain")
        choices = dict.fromkeys(places, (-math.inf, 0))
        tokens, last = 1.0, [1.0]  # P that a node is the last one accepted, the root's first
        for count, node in enumerate([None, *nodes]):
            if node is not None:
                probability = math.exp(node.score)
                tokens += probability
                last[node.parent + 1] -= probability
                last.append(probability)
            never = "plain" if count else "none" if "plain" in places else None
            for place in places:
                if place == never:
                    continue
                value = tokens - rate * cost[place][min(count + required + 1, MOST_ROWS)]
                if place == self._stream_place:
                    value += self.value * (max(last) if place == "one node" else 1.0)
                if value > choices[place][0]:
                    choices[place] = value, count
        return choices


def _filled(nodes: list[Node], count: int, vocab_size: int) -> list[Node]:
    """Fill up to ``count`` nodes with any tokens, below the last of the deepest nodes."""
    last = max(range(len(nodes)), key=lambda place: (nodes[place].depth, place), default=-1)
    depth = nodes[last].depth + 1 if nodes else 1
    missing = range(count - len(nodes))
    return [*nodes, *(Node(depth, last, token % vocab_size, UNLIKELY) for token in missing)]


# The history of a model ------------------------------------------------------------------------

_VERSION = 9
_LONG = 4096  # rows that few texts of the first minutes reach
_HISTORIES: dict[tuple[Path, Path, Path | None], History] = {}  # by costs' file, model, adapter


def history_of(model: SpeculativeModel, quantization: KVQuantization = NEVER_QUANTIZED) -> History:
    """Return the history of a model and its adapter; those of the same shapes share their costs.

    Where texts are to be reproducible, nothing that was timed or written before counts.
    """
    if model.reproducible:
        costs = StepCosts(None, {}, places_of(model.guessing), typical_costs(model))
        return new_history(costs, model.guessing)
    adapter, facts = model.adapter.path if model.adapter else None, _facts(model, quantization)
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    path = directory() / f"{name}.json"
    key = path, model.path, adapter
    if key not in _HISTORIES:
        known = (history.costs for (other, *_), history in _HISTORIES.items() if other == path)
        costs = next(known, None) or StepCosts(
            path, facts, places_of(model.guessing), typical_costs(model)
        )
        _HISTORIES[key] = new_history(costs, model.guessing)
    return _HISTORIES[key]


def rule_planner(
    model: SpeculativeModel,
    prompt: Sequence[int],
    quantization: KVQuantization = NEVER_QUANTIZED,
    proposers: Proposers = USUAL,
    rule: VerifyRule | None = None,
) -> RulePlanner:
    """Make a sequence's planner by the rule, with the history of this model and adapter."""
    made = [make(Material(prompt, model, rule)) for make in proposers.makers]
    history, vocab_size = history_of(model, quantization), model.config["vocab_size"]
    return RulePlanner(history, model.guessing, vocab_size, made, len(prompt))


def _facts(model: SpeculativeModel, quantization: KVQuantization) -> dict[str, Any]:
    """Collect everything that the cost of a step depends on, as JSON values."""
    kv_cache = None
    if quantization.bits is not None and quantization.start <= _LONG:
        kv_cache = asdict(quantization)
    guessing, adapter = model.guessing, model.adapter and model.adapter.config
    held, ranks, described = model.held, model.ranks, device.describe()
    facts = {
        "version": _VERSION,
        "base": model.base_fingerprint,
        "quantization": model.config.get("quantization"),
        "held": held and [held.form, held.row_blocks, held.stored_bytes, held.dtype],
        "streams": guessing and asdict(guessing) | {"mode": guessing.mode, "prompt_template": None},
        "lora": adapter and [adapter.get("num_layers"), adapter.get("lora_parameters")],
        "kv_cache": kv_cache,
        "processes": ranks and [ranks.size, ranks.route],
        "device": {name: described[name] for name in ("machine", "cpu", "mlx", "backend", "blas")},
    }
    if model.compiled is not None:
        facts["steps"] = "compiled"
    if held is not None and held.few_rows:
        facts["products"] = "few rows"
    return json.loads(json.dumps(facts, default=str))
