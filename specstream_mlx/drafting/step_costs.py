"""The cost of a sequence's step: timed in the decoding loop, and saved on disk.

While a curve is missing, every second step has a prescribed number of nodes instead of the best
one, and its time (``Step.seconds``) is one point of the curve; 30 to 60 are enough.
"""

import random
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..hardware import user_cache
from .batch_costs import BatchCosts, Line
from .proposer import MOST_NODES, MOST_ROWS
from .typical_costs import ON_CPU, Place, Points, TypicalCosts

StepKind = tuple[Place, int]  # a place and the number of nodes of a step to be timed

_ROUNDS = 6
_SECONDS = 3.0
_BUSY = 0.12
_MEDIAN = 1.25  # deviations of a median in those of a mean
_AGAIN_AFTER = 600.0


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a step, by the place of its streams and its number of nodes."""

    points: Points
    # Median over points of interquartile range over median; None: the points are not measured.
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
        fewer, more = MOST_NODES // 2, MOST_NODES
        less, most = self.seconds(place, fewer), self.seconds(place, more)
        row = max(0.0, (most - less) / (more - fewer))
        return max(0.0, most - row * more), row

    def relative(self, place: Place) -> list[float]:
        """Return the costs of steps of 0 to ``MOST_ROWS`` nodes, in plain steps."""
        plain = self.plain
        return [self.seconds(place, nodes) / plain for nodes in range(MOST_ROWS + 1)]

    def state(self, origin: str = "") -> str:
        """Say when the curve was measured, and whether the machine was quiet."""
        if self.spread is None:
            return f"predicted for {origin}, not measured yet" if origin else "not measured yet"
        when = datetime.fromtimestamp(self.measured).strftime("%Y-%m-%d %H:%M")
        busy = "busy, so it will be measured again" if self.busy else "quiet"
        return f"measured {when}, machine {busy} (spread {self.spread:.0%})"


class Timings:
    """The cost curve behind texts of some length, and the timings that are still missing."""

    def __init__(self, places: Sequence[Place], typical: TypicalCosts, timed: bool = True):
        self.typical, self._timed = typical, timed
        # A single node without streams is a plain step, where there are these.
        sizes: dict[Place, Sequence[int]] = dict.fromkeys(places, typical.sizes)
        if "plain" in places:
            sizes |= {"plain": (1,), "none": [n for n in typical.sizes if n > 1]}
        self._kinds = [(place, size) for place in places for size in sizes[place]]
        self._timings: list[tuple[StepKind, float]] = []
        self._saved, self._order = 0, random.Random(0)
        self._left: list[StepKind] = []
        self.curve = CostCurve({place: typical.points[place] for place in places})

    @property
    def state(self) -> str:
        return self.curve.state(self.typical.origin)

    def relative(self, place: Place) -> list[float]:
        """Return the costs of steps of 0 to ``MOST_ROWS`` nodes, in plain steps."""
        steps = self.curve.relative(place)
        if not self.curve.busy or self.typical.origin:
            return steps
        # No cost is below the typical one: too low does more harm than too high.
        least = CostCurve({name: self.typical.points[name] for name in self.curve.points})
        return [max(pair) for pair in zip(steps, least.relative(place), strict=True)]

    def best(self, place: Place, probabilities: Sequence[float]) -> tuple[int, float]:
        """Return the nodes with the most tokens in a plain step's time, and these tokens.

        Here the rule settles if its guesses, the likeliest first, are right so often.
        """
        tokens, costs = [*accumulate(probabilities, initial=1.0)], self.relative(place)
        rates = [value / costs[n] for n, value in enumerate(tokens, start=1)]
        best = max(range(len(rates)), key=rates.__getitem__)
        return best + 1, rates[best]

    def refresh(self) -> None:
        """Measure again if the machine was busy the last time, some minutes ago."""
        old = time.time() - self.curve.measured > _AGAIN_AFTER
        if self.curve.busy and old and not self._timings:
            self._left = list(self._kinds)

    def wanted(self) -> StepKind | None:
        """The step to be timed next; ``None``: no timing is left to take."""
        if not self._left and self.curve.spread is None and self._timed:
            self._left = list(self._kinds)
        return self._left[0] if self._left else None

    def note(self, seconds: float) -> None:
        """Record the time of the step that was ``wanted``."""
        self._timings.append((self._left.pop(0), seconds))
        if self._left:
            return
        spent = sum(seconds for _, seconds in self._timings)
        rounds = len(self._timings) // len(self._kinds)
        in_time = rounds < self.typical.rounds or spent * (1 + 1 / rounds) < _SECONDS
        if rounds < _ROUNDS and in_time:
            # A random order, so that no slowdown falls on the same point in every round.
            self._left = self._order.sample(self._kinds, len(self._kinds))
            return
        curve, before = _curve(self._timings, self.typical, time.time()), self.curve.spread
        worse = before is not None and curve.spread is not None and curve.spread > before
        self.curve = replace(self.curve, measured=curve.measured) if worse else curve
        self._timings, self._saved = [], -1

    @property
    def changed(self) -> bool:
        """True if there are timings that were not saved."""
        return len(self._timings) != self._saved

    def values(self) -> dict[str, Any]:
        """Return timings and curve, as JSON values, to be saved."""
        self._saved = len(self._timings)
        curve = {} if self.curve.spread is None else {"curve": vars(self.curve)}
        return {"timings": self._timings, **curve}

    def restore(self, known: dict[str, Any]) -> None:
        """Restore what was saved; raises a ``ValueError`` or similar if it cannot."""
        timings, curve = known["timings"], known.get("curve")
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


class StepCosts:
    """The costs of one model's steps on this machine, behind texts of each length.

    Without a ``path`` they are typical ones for good: nothing is timed.
    """

    def __init__(
        self,
        path: Path | None,
        facts: dict[str, Any],
        places: Sequence[Place],
        typical: Sequence[TypicalCosts] = ON_CPU,
    ):
        self._path, self._facts = path, facts  # JSON values; a file with others is ignored
        timed = path is not None
        self.batches = BatchCosts(timed)
        self.by_length = [Timings(places, one, timed) for one in typical]
        known = {} if path is None else user_cache.read(path)
        if known.get("facts") == facts:
            lengths = known.get("lengths")
            saved = lengths if isinstance(lengths, list) else ()
            for timings, values in zip(self.by_length, saved, strict=False):
                with suppress(KeyError, TypeError, ValueError, statistics.StatisticsError):
                    timings.restore(values)

    def behind(self, tokens: int) -> Timings:
        """Return the costs of steps behind so many tokens in the KV cache."""
        return next(one for one in self.by_length if tokens <= one.typical.longest)

    def save(self) -> None:
        """Write new timings to the user's cache."""
        if self._path is not None and any(timings.changed for timings in self.by_length):
            lengths = [timings.values() for timings in self.by_length]
            user_cache.write(self._path, {"facts": self._facts, "lengths": lengths})


def _curve(
    timings: Sequence[tuple[StepKind, float]], typical: TypicalCosts, now: float
) -> CostCurve:
    """Compute the curve from rounds of timings, each divided by its round's median slowness."""
    kinds = len({kind for kind, _ in timings})
    rounds = [timings[start : start + kinds] for start in range(0, len(timings), kinds)]
    steady = _by_kind(timings)
    for _ in range(2):
        usual = {kind: statistics.median(seconds) for kind, seconds in steady.items()}
        slowness = [statistics.median(s / usual[kind] for kind, s in round_) for round_ in rounds]
        pairs = zip(rounds, slowness, strict=True)
        steady = _by_kind((kind, s / slow) for round_, slow in pairs for kind, s in round_)
    timed: dict[Place, list[tuple[int, float]]] = defaultdict(list)
    for place, nodes in sorted(steady):
        timed[place].append((nodes, statistics.median(steady[place, nodes])))
    spread = statistics.median(map(_spread, steady.values()))
    if typical.origin:  # a GPU's costs may fall where its kernels change
        points = {place: tuple(pairs) for place, pairs in timed.items()}
        noise = [statistics.stdev(each) / statistics.fmean(each) for each in steady.values()]
        points = typical.through(points, _MEDIAN * statistics.fmean(noise) / len(rounds) ** 0.5)
    else:
        points = {place: _ascending(pairs) for place, pairs in timed.items()}
    return CostCurve(points, spread, now)


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


def directory() -> Path:
    """Return the directory of the files, one for each cost curve."""
    return user_cache.directory() / "step-costs"
