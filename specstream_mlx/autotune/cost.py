"""What a step costs on this machine: seconds by tree nodes and by where the streams run.

A place is a ``StreamPlacement``, or ``beside 2``: beside the two nodes most probably accepted last.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np

from ..config import StreamConfig
from ..drafting.settings import DraftSettings
from ..drafting.tree import DraftTree, root_only
from ..engine.kv import make_caches
from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..engine.step import Decoder, StepResult
from ..engine.verify.rule import VerifyRule
from ..hardware import device
from ..loading import SpeculativeModel
from .drift import without_drift

NODE_COUNTS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24)
"""Tree nodes, the root included, that are timed; others are interpolated.

Kernels change at 5 and 9 rows on Apple's GPUs.
"""

MOST_ROWS = 1024
"""Committed rows behind which steps are timed, at most."""

STREAM_NODES = (1, 2)
"""Nodes beside which streams are timed, besides all of them."""

_FEW_NODE_COUNTS = (1, 3, 8, 16)  # for models whose steps take long
_LONG = 0.005  # of the time allowed, for one plain step
_WIDTH = 4
_FIRST_ROUNDS, _ROUNDS = 3, 20
_PLAIN_TOKENS = 3
_HOPELESS = 10.0  # times a plain step: no tree makes up for that

Job = tuple[str, int] | None
"""A place and tree nodes; ``None``: a plain step."""


@dataclass(frozen=True)
class StepCosts:
    """How long a step takes on this machine, in seconds.

    Attributes:
        plain: of a step that drafts nothing.
        table: for each place of the streams, ascending (nodes, seconds); seconds do not fall.
            Where a place ends early, more nodes cost too much to be of use.
    """

    plain: float
    table: dict[str, tuple[tuple[int, float], ...]]

    def most_nodes(self, place: str) -> int:
        """Nodes up to which a place was timed; 0 where it was not."""
        return max((nodes for nodes, _ in self.table.get(place, ())), default=0)

    def seconds(self, nodes: int, place: str) -> float:
        """Seconds of a step that drafts: interpolated, or extrapolated from the largest one."""
        points = self.table[place]
        last_nodes, last = points[-1]
        if nodes > last_nodes:
            return last * nodes / last_nodes
        return float(np.interp(nodes, *zip(*points, strict=True)))


def place_of(settings: DraftSettings, streams: StreamConfig | None) -> str:
    """The place that some settings run the streams at."""
    placement = settings.placement(streams)
    few = placement == "beside" and settings.stream_nodes is not None
    return f"beside {settings.stream_nodes}" if few else placement


def places(streams: StreamConfig | None, width: int = _WIDTH) -> dict[str, DraftSettings]:
    """Settings with the streams wherever they may run (see the shared-mode contract).

    Args:
        streams: the mounted ones, or ``None``.
        width: candidates of each.
    """
    if streams is None:
        return {"none": DraftSettings(num_streams=0)}
    beside = DraftSettings(tree_width=width, deferred=False)
    if streams.mode == "shared":
        return {"beside": beside}
    few = {f"beside {n}": DraftSettings(tree_width=width, stream_nodes=n) for n in STREAM_NODES}
    none, deferred = DraftSettings(num_streams=0), DraftSettings(tree_width=width)
    return {"none": none, "deferred": deferred, "beside": beside, **few}


def measure_step_costs(
    model: SpeculativeModel,
    quantization: KVQuantization = NEVER_QUANTIZED,
    seconds: float = 5.0,
    rows: int = 128,
    promising: Callable[[StepCosts], Collection[str]] | None = None,
) -> StepCosts:
    """Time steps behind some committed rows, all kinds in turn, every round in another order.

    One timing is off by some per cent, as much as ways to draft differ, so there are many rounds,
    most of them of those places alone that may be chosen.

    Args:
        model: base and adapter.
        quantization: of the KV caches; it counts where it begins within the timed rows.
        rows: how many are committed; at most ``MOST_ROWS``, and half of the model's context.
        seconds: after which no further round of timings begins; there is one in any case.
        promising: the places worth more than the first rounds, by what these found; ``None``: all.
    """
    end = time.perf_counter() + seconds
    bench = _Bench(model, quantization, rows)
    config = model.streams and model.streams.config
    plain: Callable[[], float] = bench.plain
    if config is not None and config.mode == "shared":  # streams run all the same
        plain = partial(bench.step, _tree(1), DraftSettings(speculation=False))
    jobs: dict[Job, Callable[[], float]] = {None: plain}
    plain()  # the first pass of all compiles and allocates
    least = min(plain() for _ in range(3))
    counts = NODE_COUNTS if least < _LONG * seconds else _FEW_NODE_COUNTS
    for place, settings in places(config, min(_WIDTH, model.config["vocab_size"])).items():
        for nodes in (n for n in counts if n == 1 or n <= bench.room):
            job = partial(bench.step, _tree(nodes), settings)
            jobs[place, nodes] = job
            if job() > _HOPELESS * least and job() > _HOPELESS * least:
                break
    timings: list[tuple[Job, float]] = []
    left, orders = list(jobs), random.Random(0)
    for number in range(_ROUNDS):
        if number and time.perf_counter() > end:
            break
        if number == _FIRST_ROUNDS and promising is not None:
            kept = promising(_costs(timings, jobs))
            left = [key for key in jobs if key is None or key[0] in kept]
        for key in orders.sample(left, len(left)):
            timings.append((key, jobs[key]()))
    return _costs(timings, jobs)


def _costs(timings: Sequence[tuple[Job, float]], jobs: Iterable[Job]) -> StepCosts:
    steady = without_drift(timings)
    return StepCosts(steady[None], _table({job: steady[job] for job in jobs}))


def _table(medians: dict[Job, float]) -> dict[str, tuple[tuple[int, float], ...]]:
    """The timings by place, in which more nodes never cost less."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for key, value in medians.items():
        if key is not None:
            points[key[0]].append((key[1], value))
    return {place: _ascending(found) for place, found in points.items()}


def _ascending(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The nearest values that do not fall: neighbours that do are replaced by their mean."""
    pools: list[tuple[float, int]] = []  # (mean, how many)
    for _, value in points:
        count = 1
        while pools and pools[-1][0] > value:
            mean, others = pools.pop()
            value = (value * count + mean * others) / (count + others)
            count += others
        pools.append((value, count))
    values = [mean for mean, count in pools for _ in range(count)]
    return tuple((nodes, value) for (nodes, _), value in zip(points, values, strict=True))


class _Bench:
    """A decoder with some committed rows, to which it returns after every timing.

    Attributes:
        room: rows that the model's context still has.
    """

    def __init__(self, model: SpeculativeModel, quantization: KVQuantization, rows: int):
        context = model.config.get("max_position_embeddings") or 2 * MOST_ROWS
        rows = max(1, min(rows, MOST_ROWS, context // 2))
        self.room = context - rows
        self._decoder = Decoder(model.model, model.streams, make_caches(model.model, model.config))
        self._rule = VerifyRule()
        tokens = np.random.default_rng(0).integers(0, model.config["vocab_size"], rows)
        with mx.stream(device.generation_stream):
            self._decoder.prefill(mx.array(tokens))
            quantization.apply(self._decoder.caches)
            mx.eval([cache.state for cache in self._decoder.caches])

    def plain(self) -> float:
        """Seconds of a plain step, each enqueued before the one before it is read."""
        start = time.perf_counter()
        result = self._enqueue(mx.array([1]))
        for _ in range(_PLAIN_TOKENS):
            following = self._enqueue(result.predictions)
            result.predictions.item()
            result = following
        result.predictions.item()
        seconds = (time.perf_counter() - start) / (_PLAIN_TOKENS + 1)
        self._decoder.uncommit(_PLAIN_TOKENS + 1)
        return seconds

    def _enqueue(self, token: mx.array) -> StepResult:
        with mx.stream(device.generation_stream):
            result = self._decoder.next_token(token, self._rule)
        mx.async_eval(result.predictions)
        return result

    def step(self, tree: DraftTree, settings: DraftSettings) -> float:
        """Seconds of a step over ``tree`` that accepts its last node's path, read and committed."""
        start = time.perf_counter()
        with mx.stream(device.generation_stream):
            result = self._decoder.step(tree, settings, self._rule)
        mx.eval(*result.arrays())
        result.accepted(tree)
        result.prediction()
        result.guesses()
        path = tree.path(len(tree) - 1)
        with mx.stream(device.generation_stream):
            self._decoder.commit(path, path)
        seconds = time.perf_counter() - start
        with mx.stream(device.generation_stream):
            mx.eval([cache.state for cache in self._decoder.caches])
            self._decoder.uncommit(len(path))
        return seconds


def _tree(nodes: int) -> DraftTree:
    """A tree as streams draft them: a trunk with a leaf beside every second of its nodes."""
    if nodes == 1:
        return root_only(1)
    parents, depths, trunk = [-1], [0], 0
    while len(parents) < nodes:
        depth = depths[trunk] + 1
        width = min(1 + depth % 2, nodes - len(parents))
        children = range(len(parents), len(parents) + width)
        parents += [trunk] * width
        depths += [depth] * width
        trunk = children[0]
    tokens = np.arange(1, nodes + 1, dtype=np.int32) % 2
    depth = np.array(depths, np.int32)
    return DraftTree(tokens, np.array(parents, np.int32), depth, log_probs=-1.0 * depth)
