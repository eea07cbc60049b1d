"""The rule: before every step, the tree and the place of the streams that are worth the most.

A step is worth the tokens that it is expected to write, less those that its time is worth, plus
what streams beside it will be worth to the step after it::

    1 + sum of P(node) - r * cost(nodes, place) + v * q

r is the recent number of tokens per plain step's time, v the amount by which the streams' guesses
have raised this value, and q the chance that streams run beside the node accepted last. The tokens
of a step over its time would be the wrong measure: a step need not be efficient by itself, it has
to beat the tokens that other steps write in the same time. In a pass of several texts, r and cost
are those of the pass, see ``batch_cost``.

Only streams that run show what they are worth. So where another step is worth more, streams run all
the same once the difference is a small share (``constants.TRIALS``) of the tokens written without
them.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..engine.draft_head import HeadConfig
from ..engine.guess import StreamGuesses
from ..engine.kv import NEVER_QUANTIZED, KVQuantization
from ..engine.plan import LIKELIEST, NOTHING_VERIFIED, DraftTree, Plan, Verified, root_only
from ..engine.verify.rule import VerifyRule
from ..loading import SpeculativeModel
from ..stream_config import StreamConfig
from . import constants
from .batch_cost import BatchCosts, Share
from .best_first import UNLIKELY, Children, Node, likeliest, tree_of, with_paths
from .calibration import StreamAverages, averaged
from .constants import MOST_NODES, MOST_ROWS
from .cost import Place, StepCosts, device_facts, directory
from .pooling import pool, required_paths
from .proposer import Material, Price, Proposer
from .settings import USUAL, Proposers


@dataclass
class Pace:
    """Measurements that outlive a text: costs of steps, and recent results with one adapter.

    Attributes:
        costs: costs of steps, shared by all adapters that cost the same.
        tokens, time: tokens of recent steps and their time, in plain steps.
        value: average worth of the streams' guesses to a step, in tokens, at which v of the next
            text starts.
        valued: number of steps in that average, at most ``constants.PACE_VALUE_MEMORY``; what it
            starts at counts as ``constants.PACE_VALUE_WEIGHT``.
    """

    costs: StepCosts
    tokens: float
    time: float
    value: float
    valued: int

    @property
    def rate(self) -> float:
        """Recent tokens in the time of a plain step; at least 1, a plain step's own."""
        return max(1.0, self.tokens / self.time)

    def note(self, tokens: int, time: float) -> None:
        """Take in a step's tokens and its time, in plain steps."""
        kept = max(0.0, 1 - tokens / constants.RATE_MEMORY)
        self.tokens = self.tokens * kept + tokens
        self.time = self.time * kept + time

    def value_of(self, gain: float) -> None:
        """Take in the tokens by which guesses raised the value of the best step."""
        memory = constants.PACE_VALUE_MEMORY
        self.value, self.valued = averaged(self.value, self.valued, gain, memory)


def new_pace(costs: StepCosts, streams: StreamConfig | HeadConfig | None) -> Pace:
    """Make the pace of an adapter that has not decoded yet."""
    shared = streams is not None and streams.mode == "shared"
    time, rate = constants.RATE_MEMORY, constants.SHARED_RATE if shared else 1.0
    return Pace(costs, rate * time, time, constants.VALUE, constants.PACE_VALUE_WEIGHT)


def places_of(streams: StreamConfig | HeadConfig | None) -> tuple[Place, ...]:
    """List the places that the rule chooses from, the one where streams guess last.

    Shared streams run in every step, since the text depends on them; their head may be left out.
    """
    if streams is None:
        return ("plain", "none")
    if isinstance(streams, HeadConfig):
        return ("plain", "none", "head")
    return ("none", "beside") if streams.mode == "shared" else ("plain", "none", "beside 1")


def _plans(
    streams: StreamConfig | HeadConfig | None, width: int
) -> dict[Place, Callable[[DraftTree], Plan]]:
    """Make the functions that turn a tree into a plan, by place."""
    plain, none = partial(Plan, place="plain"), partial(Plan, place="none")
    if streams is None:
        return {"plain": plain, "none": none}
    count = streams.num_streams
    expand = (LIKELIEST,) * (count - 1)
    if isinstance(streams, HeadConfig):
        head = partial(Plan, place="head", streams=count, expand=expand, width=width)
        return {"plain": plain, "none": none, "head": head}
    run = partial(Plan, place="beside", streams=count, expand=expand)
    if streams.mode == "shared":
        return {"none": run, "beside": partial(run, width=width)}
    return {"plain": plain, "none": none, "beside 1": partial(run, width=width, beside=1)}


@dataclass(frozen=True)
class _Choice:
    """A place, the number of nodes besides the root, and the value of such a step in tokens."""

    place: Place
    nodes: int
    value: float


def _most(found: dict[Place, _Choice]) -> _Choice:
    """Take the choice of the greatest value, the first of equal ones."""
    return max(found.values(), key=lambda choice: choice.value)


class AutoDrafting:
    """A ``Drafting`` that plans the steps of one text by the rule.

    Attributes:
        pace: see below.
        averages: corrections of the streams' probabilities in this text.
        value: v, which begins at that of the texts before.

    Args:
        pace: the pace of this model and adapter, which is kept up to date.
        streams: configuration of the mounted streams or draft head, or ``None``.
        vocab_size: the model's number of tokens.
        proposers: proposers of this text, beside the streams.
    """

    def __init__(
        self,
        pace: Pace,
        streams: StreamConfig | HeadConfig | None,
        vocab_size: int,
        proposers: Sequence[Proposer] = (),
    ):
        self.pace, self._places = pace, places_of(streams)
        self._stream_place: Place | None = None if streams is None else self._places[-1]
        self._vocab_size = vocab_size
        drafted = vocab_size if streams is None else streams.draft_vocabulary or vocab_size
        self._plans = _plans(streams, min(constants.WIDTH, drafted))
        self._cost = {place: pace.costs.curve.relative(place) for place in self._places}
        self._proposers = proposers
        self.averages = StreamAverages()
        self.value, self._valued = pace.value, constants.VALUE_WEIGHT
        self._allowance = 0.0  # tokens that a step with streams may be worth less than another
        self._owed = 0.0  # what of them the planned step takes when it has run
        self._plain_run = self._asked = 0  # nodes that proposers ask for
        self._measures = False  # whether the step that was planned is timed for the curve
        self._turn = False  # whether the step to be planned may be
        self._texts = 1  # of the next pass
        self._share: Share | None = None  # of it, where there are several
        pace.costs.refresh()

    def first(self, root: int) -> Plan:
        """Plan a step without drafts, in which streams run if there are any; see ``Drafting``."""
        return self._plans[self._stream_place or "plain"](root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Learn from a step; see ``Drafting``."""
        for proposer in self._proposers:
            proposer.accept(tokens)
        self.averages.accept(tokens)
        place = self.place_of(plan)
        self._plain_run = self._plain_run + 1 if place == "plain" else 0
        if place == self._stream_place:
            self._allowance -= self._owed
        else:
            self._allowance += constants.TRIALS * len(tokens)
        spent = sum(proposer.spent() for proposer in self._proposers)
        own = None if seconds is None else max(seconds - spent, 1e-9)
        measured = self._measures and self._note(place, len(plan.tree), own)
        self._turn = not measured and seconds is not None  # in a batch nothing is timed
        if not measured and self._share is None:
            curve = self.pace.costs.curve
            drafting = 0.0 if curve.spread is None else spent / curve.plain
            rows = min(len(plan.tree), MOST_ROWS)
            self.pace.note(len(tokens), self._cost[place][rows] + drafting)

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Plan the step that is worth most; see ``Drafting``."""
        self.averages.take(guesses)
        price = self._price()
        for proposer in self._proposers:
            proposer.begin(verified, price)
        paths = required_paths(self._proposers)
        self._asked = len(with_paths((), paths))
        nodes = self._likeliest(pool(self._proposers, self.averages.behind))
        self._share = self._share_of(nodes)
        if guesses.depth and self._stream_place is not None:
            alone = self._best(self._likeliest(pool(self._proposers)))
            self._value_of(max(0.0, self._best(nodes).value - alone.value))
        self._measures, self._owed = False, 0.0
        job = self.pace.costs.wanted()
        if job is not None and self._turn and job[0] in self._places:
            self._measures = True
            drafts = job[1] - 1
            timed = _filled(nodes[:drafts], drafts, self._vocab_size)
            return self._plans[job[0]](tree_of(root, timed))
        choice = self._tried(nodes)
        return self._plans[choice.place](tree_of(root, with_paths(nodes[: choice.nodes], paths)))

    def beside(self, texts: int) -> BatchCosts:
        """Weigh what a pass of so many texts costs; see ``Sharing``."""
        self._texts = texts
        return self.pace.costs.batches

    def _share_of(self, nodes: Sequence[Node]) -> Share | None:
        """This text's share of the next pass; ``None``: it is alone."""
        if self._texts < 2:
            return None
        costs, curve = self.pace.costs.batches, self.pace.costs.curve
        costs.note_gains(self._texts, [math.exp(node.score) for node in nodes])
        guessing = self._stream_place or "none"
        return costs.share(self._texts, (curve.line("none"), curve.line(guessing)))

    def finish(self) -> None:
        """Keep the timings of this text, and what proposers keep."""
        self.pace.costs.save()
        for proposer in self._proposers:
            proposer.finish()

    def _price(self) -> Price:
        """Say what a proposer's time is worth."""
        curve, rate, cost = self.pace.costs.curve, self.pace.rate, self._cost["none"]
        row = rate * (cost[MOST_NODES] - cost[2]) / (MOST_NODES - 2)
        return Price(rate, row, None if curve.spread is None else curve.plain)

    def _value_of(self, gain: float) -> None:
        """Take in the tokens by which guesses raised the value of the best step."""
        memory = constants.VALUE_MEMORY
        self.value, self._valued = averaged(self.value, self._valued, gain, memory)
        self.pace.value_of(gain)

    def _likeliest(self, children: Children) -> list[Node]:
        """List the most probable nodes for which there is room, in order of probability."""
        count = max(1, MOST_NODES - 1 - self._asked)
        return list(islice(likeliest(children, constants.LEAST), count))

    def _best(self, nodes: Sequence[Node]) -> _Choice:
        """Choose the best place and number of nodes, over all beginnings of ``nodes``."""
        return _most(self._by_place(nodes))

    def _tried(self, nodes: Sequence[Node]) -> _Choice:
        """Choose the best, or that in which streams run if the allowance is enough for it."""
        found = self._by_place(nodes)
        best = _most(found)
        if self._stream_place is None:
            return best
        trial = found[self._stream_place]
        # All texts of a pass wait for the guesses, and get some.
        loss = self._texts * (best.value - trial.value)
        if loss > self._allowance:
            return best
        self._owed = loss
        return trial

    def _by_place(self, nodes: Sequence[Node]) -> dict[Place, _Choice]:
        """Choose the best number of nodes for every place, over all beginnings of ``nodes``."""
        rate, cost, places, asked = self.pace.rate, self._cost, self._places, self._asked
        if self._share is not None:
            rate = self._share.rate
            cost = {one: self._share.costs(one == self._stream_place) for one in self._places}
        if asked:
            places = tuple(place for place in places if place != "plain")
        found = dict.fromkeys(places, (-math.inf, 0))
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
                value = tokens - rate * cost[place][min(count + asked + 1, MOST_ROWS)]
                if place == self._stream_place:
                    value += self.value * (max(last) if place == "beside 1" else 1.0)
                if value > found[place][0]:
                    found[place] = value, count
        return {place: _Choice(place, count, value) for place, (value, count) in found.items()}

    def place_of(self, plan: Plan) -> Place:
        """Return the place of the streams in a step that was planned here."""
        if plan.pipelined:
            return "plain"
        return self._places[-1] if plan.width else "none"

    def _note(self, place: Place, nodes: int, seconds: float | None) -> bool:
        """Add a step's time to the curve; returns whether the step was one to be timed."""
        costs, piped = self.pace.costs, self._plain_run >= constants.PLAIN_RUN
        if seconds is None or (place, nodes) != costs.wanted() or (place == "plain" and not piped):
            return False
        costs.note(seconds)
        self._cost = {place: costs.curve.relative(place) for place in self._places}
        return True


def _filled(nodes: list[Node], count: int, vocab_size: int) -> list[Node]:
    """Fill up to ``count`` nodes with any tokens, below the last of the deepest nodes."""
    last = max(range(len(nodes)), key=lambda place: (nodes[place].depth, place), default=-1)
    depth = nodes[last].depth + 1 if nodes else 1
    missing = range(count - len(nodes))
    return [*nodes, *(Node(depth, last, token % vocab_size, UNLIKELY) for token in missing)]


# The pace of a model ---------------------------------------------------------------------------

_VERSION = 7
_LONG = 4096  # rows that few texts of the first minutes reach

_PACES: dict[tuple[Path, Path, Path | None], Pace] = {}
"""Paces by the file of their costs, model and adapter, for as long as the program runs."""


def pace_of(model: SpeculativeModel, quantization: KVQuantization = NEVER_QUANTIZED) -> Pace:
    """Return the pace of a model with its present adapter; make it at the first call.

    Args:
        model: base and adapter; adapters of the same shapes share one object of costs.
        quantization: settings of the KV cache's quantization.
    """
    streams = model.guessing
    adapter = model.adapter.path if model.adapter else None
    facts = _facts(model, quantization)
    path = _file(facts)
    key = path, model.path, adapter
    if key not in _PACES:
        known = (pace.costs for (other, *_), pace in _PACES.items() if other == path)
        names = {"model": str(model.path), "adapter": str(adapter) if adapter else None}
        costs = next(known, None) or StepCosts(path, facts, places_of(streams), names)
        _PACES[key] = new_pace(costs, streams)
    return _PACES[key]


def auto_drafting(
    model: SpeculativeModel,
    prompt: Sequence[int],
    quantization: KVQuantization = NEVER_QUANTIZED,
    proposers: Proposers = USUAL,
    rule: VerifyRule | None = None,
) -> AutoDrafting:
    """Plan a text by the rule, at the pace of this model and adapter.

    Args:
        model: base and adapter.
        prompt: token ids.
        quantization: settings of the KV cache's quantization.
        proposers: what proposes beside the streams.
        rule: the text's verify rule, see ``Material``.
    """
    material = Material(prompt, model, rule)
    own = [make(material) for make in proposers.makers]
    pace, vocab_size = pace_of(model, quantization), model.config["vocab_size"]
    return AutoDrafting(pace, model.guessing, vocab_size, own)


def _file(facts: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    return directory() / f"{name}.json"


def _facts(model: SpeculativeModel, quantization: KVQuantization) -> dict[str, Any]:
    """Collect everything that the cost of a step depends on, as JSON values."""
    kv_cache = None
    if quantization.bits is not None and quantization.start <= _LONG:
        kv_cache = [quantization.bits, quantization.group_size, quantization.start]
    guessing = model.guessing
    streams = guessing and asdict(guessing) | {"mode": guessing.mode, "prompt_template": None}
    adapter, held = model.adapter and model.adapter.config, model.held
    facts = {
        "version": _VERSION,
        "base": model.base_fingerprint,
        "quantization": model.config.get("quantization"),
        "held": held and [held.form, held.row_blocks, held.stored_bytes, held.dtype],
        "streams": streams,
        "lora": adapter and [adapter.get("num_layers"), adapter.get("lora_parameters")],
        "kv_cache": kv_cache,
        "processes": model.ranks.size if model.ranks else 1,
        "device": device_facts(),
    }
    if model.ranks is not None:
        facts["route"] = model.ranks.route
    return json.loads(json.dumps(facts, default=str))
