"""The cost of a step: timed in the decoding loop, and saved on disk.

While a curve is missing, every second step has a prescribed number of nodes instead of the best
one, and its time (``Step.seconds``) is one point of the curve; 30 to 60 are enough.
"""

import random
import statistics
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..hardware import user_cache
from .proposer import MOST_NODES

MOST_ROWS = 4 * MOST_NODES  # up to which costs differ: proposers may require more than MOST_NODES
RATE_MEMORY = 128.0  # tokens that r averages: from 32 to 512 within 2% (studied)
BATCH_MEMORY = 64  # passes of several after which times of another number of rows are forgotten
BATCH_TIMES = 5  # latest times of passes of several sequences for each number of rows

Place = Literal["plain", "none", "one node", "nodes", "head"]
"""The place where a step's streams guess: nowhere, in a pipelined plain step without drafts
(``plain``) or in one that verifies a tree (``none``); at the likeliest node (``one node``); or at
every node (``nodes``). Shared streams run in ``none`` too, but make no guesses. In ``head``
a draft head guesses after the accepted node."""

StepKind = tuple[Place, int]  # a place and the number of nodes of a step to be timed
Line = tuple[float, float]  # seconds that all rows of a pass share, and seconds of each row

_SIZES = (1, 2, 4, 8, MOST_NODES)
_ROUNDS = 6
_SECONDS = 3.0
_BUSY = 0.12
_AGAIN_AFTER = 600.0

# Relative costs of steps of ``_SIZES`` nodes, used until they are measured (2-core Linux).
_TYPICAL: dict[Place, tuple[float, ...]] = {
    "plain": (1.0,),
    "none": (1.17, 1.35, 1.6, 1.9, 2.2),
    "one node": (1.9, 2.0, 2.1, 2.3, 2.7),
    "nodes": (1.25, 1.4, 1.7, 1.95, 2.5),
    "head": (1.9, 2.0, 2.1, 2.3, 2.7),
}


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a step, by the place of its streams and its number of nodes."""

    points: dict[Place, tuple[tuple[int, float], ...]]  # ascending (nodes, seconds)
    # Median over points of interquartile range over median; None: the points are another machine's.
    spread: float | None = None
    measured: float = 0.0  # when

    @property
    def plain(self) -> float:
        """Seconds of a step that drafts nothing; in shared mode its streams run."""
        return self.points["plain" if "plain" in self.points else "none"][0][1]

    @property
    def busy(self) -> bool:
        """True if timings differed so much that other processes must have been running."""
        return self.spread is not None and self.spread > _BUSY

    def seconds(self, place: Place, nodes: int) -> float:
        """Return the seconds of a step, interpolated between two points."""
        points = self.points[place]
        right = bisect_left(points, (nodes, 0.0))
        if right == len(points):
            return points[-1][1] * max(1.0, nodes / points[-1][0])
        if right == 0 or points[right][0] == nodes:
            return points[right][1]
        (fewer, less), (more, most) = points[right - 1], points[right]
        return less + (most - less) * (nodes - fewer) / (more - fewer)

    def line(self, place: Place) -> Line:
        """Extend the largest steps: seconds that all rows of a pass share, and of each row."""
        (fewer, less), (more, most) = self.points[place][-2:]
        row = (most - less) / (more - fewer)
        return max(0.0, most - row * more), row

    def relative(self, place: Place) -> list[float]:
        """Return the costs of steps of 0 to ``MOST_ROWS`` nodes, in plain steps."""
        plain = self.plain
        steps = [self.seconds(place, nodes) / plain for nodes in range(MOST_ROWS + 1)]
        if not self.busy:
            return steps
        # No cost is below the typical one: too low does more harm than too high.
        typical = CostCurve({name: _typical(name) for name in self.points})
        least = (typical.seconds(place, n) / typical.plain for n in range(len(steps)))
        return [max(pair) for pair in zip(steps, least, strict=True)]

    def state(self) -> str:
        """Say when the curve was measured, and whether the machine was quiet."""
        if self.spread is None:
            return "not measured yet"
        when = datetime.fromtimestamp(self.measured).strftime("%Y-%m-%d %H:%M")
        busy = "busy, so it will be measured again" if self.busy else "quiet"
        return f"measured {when}, machine {busy} (spread {self.spread:.0%})"


class StepCosts:
    """The cost curve of one model on this machine, and the timings that are still missing.

    Without a ``path`` the costs are typical ones for good: nothing is timed.
    """

    def __init__(self, path: Path | None, facts: dict[str, Any], places: Sequence[Place]):
        self._path, self._facts = path, facts  # JSON values; a file with others is ignored
        self.batches = BatchCosts(timed=path is not None)
        # A single node without streams is a plain step, where there are these.
        sizes: dict[Place, tuple[int, ...]] = dict.fromkeys(places, _SIZES)
        if "plain" in places:
            sizes |= {"plain": (1,), "none": _SIZES[1:]}
        self._kinds = [(place, size) for place in places for size in sizes[place]]
        self._timings: list[tuple[StepKind, float]] = []
        self._saved, self._order = 0, random.Random(0)
        self._left: list[StepKind] = []
        self.curve = CostCurve({place: _typical(place) for place in places})
        known = {} if path is None else user_cache.read(path)
        if known.get("facts") == facts:
            with suppress(KeyError, TypeError, ValueError, statistics.StatisticsError):
                self._restore(known)

    def refresh(self) -> None:
        """Measure again if the machine was busy the last time, some minutes ago."""
        old = time.time() - self.curve.measured > _AGAIN_AFTER
        if self.curve.busy and old and not self._timings:
            self._left = list(self._kinds)

    def wanted(self) -> StepKind | None:
        """The step to be timed next; ``None``: no timing is left to take."""
        if not self._left and self.curve.spread is None and self._path is not None:
            self._left = list(self._kinds)
        return self._left[0] if self._left else None

    def note(self, seconds: float) -> None:
        """Record the time of the step that was ``wanted``."""
        self._timings.append((self._left.pop(0), seconds))
        if self._left:
            return
        spent = sum(seconds for _, seconds in self._timings)
        rounds = len(self._timings) // len(self._kinds)
        if rounds < _ROUNDS and spent * (1 + 1 / rounds) < _SECONDS:
            # A random order, so that no slowdown falls on the same point in every round.
            self._left = self._order.sample(self._kinds, len(self._kinds))
            return
        curve, before = _curve(self._timings, time.time()), self.curve.spread
        worse = before is not None and curve.spread is not None and curve.spread > before
        self.curve = replace(self.curve, measured=curve.measured) if worse else curve
        self._timings, self._saved = [], -1

    def save(self) -> None:
        """Write new timings to the user's cache."""
        if self._path is None or len(self._timings) == self._saved:
            return
        self._saved = len(self._timings)
        values: dict[str, Any] = {"facts": self._facts, "timings": self._timings}
        if self.curve.spread is not None:
            values["curve"] = vars(self.curve)
        user_cache.write(self._path, values)

    def _restore(self, known: dict[str, Any]) -> None:
        """Restore a file's curve and timings; raises a ``ValueError`` or similar if it cannot."""
        curve, timings = known.get("curve"), known["timings"]
        if any((place, n) not in self._kinds for (place, n), _ in timings):
            raise ValueError("an earlier version named the places otherwise")
        if curve is not None:
            spread, measured = float(curve["spread"]), float(curve["measured"])
            points = {
                place: tuple((int(n), float(s)) for n, s in curve["points"][place])
                for place in self.curve.points
            }
            if min(s for pairs in points.values() for _, s in pairs) <= 0:
                raise ValueError("a step takes no time")
            self.curve = CostCurve(points, spread, measured)
        self._timings = [((place, int(n)), float(s)) for (place, n), s in timings]
        rounds = len(timings) // len(self._kinds)
        begun = {kind for kind, _ in self._timings[rounds * len(self._kinds) :]}
        self._left = [kind for kind in self._kinds if kind not in begun] if timings else []
        self._saved = len(timings)


def _typical(place: Place) -> tuple[tuple[int, float], ...]:
    return tuple(zip(_SIZES, _TYPICAL[place], strict=False))


def _curve(timings: Sequence[tuple[StepKind, float]], now: float) -> CostCurve:
    """Compute the curve from rounds of timings, each divided by its round's median slowness."""
    kinds = len({kind for kind, _ in timings})
    rounds = [timings[start : start + kinds] for start in range(0, len(timings), kinds)]
    steady = _by_kind(timings)
    for _ in range(2):
        usual = {kind: statistics.median(seconds) for kind, seconds in steady.items()}
        slowness = [statistics.median(s / usual[kind] for kind, s in round_) for round_ in rounds]
        pairs = zip(rounds, slowness, strict=True)
        steady = _by_kind((kind, s / slow) for round_, slow in pairs for kind, s in round_)
    points: dict[Place, list[tuple[int, float]]] = defaultdict(list)
    for place, nodes in sorted(steady):
        points[place].append((nodes, statistics.median(steady[place, nodes])))
    spread = statistics.median(map(_spread, steady.values()))
    return CostCurve({place: _ascending(pairs) for place, pairs in points.items()}, spread, now)


def _by_kind(timings: Iterable[tuple[StepKind, float]]) -> dict[StepKind, list[float]]:
    by_kind: dict[StepKind, list[float]] = defaultdict(list)
    for kind, seconds in timings:
        by_kind[kind].append(seconds)
    return by_kind


def _spread(seconds: Sequence[float]) -> float:
    if len(seconds) < 2:
        return 1.0  # unknown
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / middle


def _ascending(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Make the values ascend: if fewer nodes took longer, another process was the reason."""
    values = [*accumulate((seconds for _, seconds in reversed(points)), min)]
    return tuple((nodes, value) for (nodes, _), value in zip(points, values[::-1], strict=True))


# Passes of several sequences -------------------------------------------------------------------
#
# A pass costs a part that its sequences share and a part for each row, so a draft must be likelier
# to earn its row than in a pass of one. Shorter trees are filled up to the longest one's rows, so
# all trees get the same most nodes:
#
#     B * (1 + sum of G(node)) - r * (shared + row * B * nodes)
#
# B is the number of sequences, G(k) the recent probability of a sequence's k-th likeliest node,
# averaged over them, and r the recent tokens per second of passes of B sequences.

_PRIOR = 1.0  # passes of twice the least rows that the solo steps' cost of a row counts as


class _Passes:
    """The newest passes of each number of rows; a line through them gives the cost of a row."""

    def __init__(self) -> None:
        self.recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=BATCH_TIMES))
        self._newest: dict[int, int] = {}  # number of the newest pass
        self._count = 0
        self._line: Line | None = None

    def note(self, rows: int, seconds: float) -> None:
        self._count += 1
        self.recent[rows].append(seconds)
        self._newest[rows] = self._count
        for size in [n for n, at in self._newest.items() if self._count - at > BATCH_MEMORY]:
            del self.recent[size], self._newest[size]  # so that it may be tried again
        self._line = None

    def line(self, least: int, solo: Line) -> Line:
        """Return the least-squares line, drawn towards the slope of ``solo``, one sequence's steps.

        ``least`` is the rows of a pass that drafts nothing.
        """
        if not self.recent:
            return solo
        if self._line is not None:
            return self._line
        sizes = sorted(self.recent, reverse=True)
        usual: list[float] = []
        for size in sizes:
            seconds = statistics.median_low(self.recent[size])
            # Fewer rows never take longer; if they seem to, other programs had the processor.
            usual.append(min(seconds, usual[-1]) if usual else seconds)
        weights = [len(self.recent[size]) for size in sizes]
        rows, level = (statistics.fmean(values, weights) for values in (sizes, usual))
        far = [size - rows for size in sizes]
        spread = sum(w * x * x for w, x in zip(weights, far, strict=True))
        product = sum(w * x * (y - level) for w, x, y in zip(weights, far, usual, strict=True))
        strength = _PRIOR * least * least
        believed = level * solo[1] / _seconds(solo, rows)
        slope = (product + strength * believed) / (spread + strength)
        slope = min(max(slope, 0.0), level / rows)
        self._line = level - slope * rows, slope
        return self._line


class _BatchPasses:
    """Passes of one number of sequences; sums are over recent ones."""

    def __init__(self) -> None:
        self.passes = _Passes(), _Passes()  # whose streams do not guess, and whose streams do
        self.tokens = self.rows = self.count = 0.0
        self.gains, self.noted = [0.0] * MOST_NODES, 0.0  # probabilities of the likeliest nodes


class Share(NamedTuple):
    """The part of a sequence in passes with others."""

    rate: float  # recent tokens per second of all sequences
    nodes: int  # of its tree, at most
    costs: list[list[float]]  # seconds by nodes, without streams' guesses and with them


class BatchCosts:
    """Costs of passes of several sequences of one model, by their number.

    Unless they are ``timed``, those of one sequence stand for all.
    """

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._batches = defaultdict[int, _BatchPasses](_BatchPasses)

    def note(
        self, count: int, rows: int, guesses: bool, tokens: int, seconds: float | None
    ) -> None:
        """Record a pass of so many sequences and rows, padding included."""
        batch = self._batches[count]
        if seconds is not None and self._timed:
            batch.passes[guesses].note(rows, seconds)
        part = max(0.0, 1 - tokens / (RATE_MEMORY * count))
        batch.tokens = batch.tokens * part + tokens
        batch.rows = batch.rows * part + rows
        batch.count = batch.count * part + 1

    def note_gains(self, count: int, probabilities: Sequence[float]) -> None:
        """Record the probabilities of a sequence's nodes except the root, the likeliest first."""
        batch, part = self._batches[count], 1 - 1 / RATE_MEMORY
        batch.noted = batch.noted * part + 1
        for place in range(MOST_NODES):
            probability = probabilities[place] if place < len(probabilities) else 0.0
            batch.gains[place] = batch.gains[place] * part + probability

    def share(self, count: int, solo: tuple[Line, Line]) -> Share:
        """Return the share of one of so many; ``solo``: costs alone, without and with guesses."""
        batch = self._batches[count]
        lines = [times.line(count, alone) for times, alone in zip(batch.passes, solo, strict=True)]
        timed = [bool(times.recent) for times in batch.passes]
        if timed[0] != timed[1]:  # what was never timed is to the other as with one sequence
            other = int(timed[1])
            ratio = _seconds(solo[1 - other], count) / _seconds(solo[other], count)
            shared, row = lines[other]
            lines[1 - other] = shared * ratio, row * ratio
        rate = count / _seconds(lines[0], count)
        if batch.count:
            shared, row = lines[1]
            rate = max(rate, batch.tokens / (shared * batch.count + row * batch.rows))
        nodes, row = 1, lines[1][1]
        while nodes < MOST_NODES and batch.gains[nodes - 1] > rate * row * batch.noted:
            nodes += 1
        more = [max(0, n - nodes) * count for n in range(MOST_ROWS + 1)]  # rows of further nodes
        costs = [
            [_seconds(line, count * nodes) / count + line[1] * n for n in more] for line in lines
        ]
        return Share(rate, nodes, costs)


def _seconds(line: Line, rows: float) -> float:
    """Seconds of a pass of so many rows."""
    shared, row = line
    return shared + row * rows


def directory() -> Path:
    """Return the directory of the files, one for each cost curve."""
    return user_cache.directory() / "step-costs"
