"""What a step costs: timed in the decoding loop, while it writes its text, and kept on disk.

Nothing waits for a benchmark. While a curve is missing, every second step of a generation has a
prescribed number of nodes instead of the best one; its text is the same, and its time is one point
of the curve. Some 30 to 60 such steps are enough, over as many texts as it takes.
"""

import random
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from ..hardware import user_cache
from .constants import MOST_NODES

Place = Literal["plain", "none", "beside 1", "beside"]
"""Where a step's streams guess: nowhere, in a pipelined plain step without drafts (``plain``) or
in one that verifies a tree (``none``); beside the likeliest node (``beside 1``); or beside every
node (``beside``). Shared streams run in ``none`` too, since the text depends on them, but make no
guesses."""

Job = tuple[Place, int]
"""A place, and the nodes of a step that is to be timed, the root included."""

_SIZES = (1, 2, 4, 8, MOST_NODES)
_ROUNDS = 6
_SECONDS = 3.0
_BUSY = 0.12
_AGAIN_AFTER = 600.0

_TYPICAL: dict[Place, tuple[float, ...]] = {
    "plain": (1.0,),
    "none": (1.17, 1.35, 1.6, 1.9, 2.2),
    "beside 1": (1.9, 2.0, 2.1, 2.3, 2.7),
    "beside": (1.25, 1.4, 1.7, 1.95, 2.5),
}
"""What a step of so many ``_SIZES`` takes, until it is measured (2-core Linux)."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a step, by where its streams run and how many nodes it has.

    Attributes:
        points: for each place, ascending (nodes, seconds); more nodes never take less.
        spread: interquartile range of one timing over its median, the median of all points;
            ``None``: nothing is measured yet and the figures are relative ones of another machine.
        rounds: how often each point was timed.
        measured: when, in seconds since 1970.
    """

    points: dict[Place, tuple[tuple[int, float], ...]]
    spread: float | None = None
    rounds: int = 0
    measured: float = 0.0

    @property
    def plain(self) -> float:
        """Seconds of a step that drafts nothing; in shared mode its streams run."""
        return self.points["plain" if "plain" in self.points else "none"][0][1]

    @property
    def busy(self) -> bool:
        """Whether timings were so far apart that something else must have kept the machine busy."""
        return self.spread is not None and self.spread > _BUSY

    def seconds(self, place: Place, nodes: int) -> float:
        """Seconds of a step, between two points in proportion."""
        points = self.points[place]
        right = bisect_left(points, (nodes, 0.0))
        if right == len(points):
            return points[-1][1] * max(1.0, nodes / points[-1][0])
        if right == 0 or points[right][0] == nodes:
            return points[right][1]
        (fewer, less), (more, most) = points[right - 1], points[right]
        return less + (most - less) * (nodes - fewer) / (more - fewer)

    def relative(self, place: Place) -> list[float]:
        """Plain steps that a step takes, for 0 to ``MOST_NODES`` nodes; those of 0 mean nothing.

        Points of a busy machine are off by tenths, and what is believed too cheap costs more than
        what is believed too dear: then no step is believed to cost less than it typically does.
        """
        plain = self.plain
        found = [self.seconds(place, nodes) / plain for nodes in range(MOST_NODES + 1)]
        if not self.busy:
            return found
        typical = CostCurve({one: _typical(one) for one in self.points})
        return [max(one, typical.seconds(place, n) / typical.plain) for n, one in enumerate(found)]

    def state(self) -> str:
        """Say when it was measured, and whether the machine was quiet."""
        if self.spread is None:
            return "not measured yet"
        when = datetime.fromtimestamp(self.measured).strftime("%Y-%m-%d %H:%M")
        busy = "busy, so it will be measured again" if self.busy else "quiet"
        return f"measured {when}, machine {busy} (spread {self.spread:.0%})"


class StepCosts:
    """The cost curve of one model on this machine, and the timings that are still missing.

    Args:
        path: file in the user's cache.
        facts: all that the costs depend on, as JSON has it; the file counts if it has the same.
        places: where streams may run with this model.
        names: what the model and its adapter are called, kept beside the curve for people.
    """

    def __init__(
        self,
        path: Path,
        facts: dict[str, Any],
        places: Sequence[Place],
        names: Mapping[str, str | None] | None = None,
    ):
        self._path, self._facts, self._names = path, facts, dict(names or {})
        self._jobs = [(place, size) for place in places for size in _sizes(place, places)]
        self._timings: list[tuple[Job, float]] = []
        self._saved, self._order = 0, random.Random(0)
        self._left: list[Job] = []
        self.curve = CostCurve({place: _typical(place) for place in places})
        known = user_cache.read(path)
        if known.get("facts") == facts:
            with suppress(KeyError, TypeError, ValueError, statistics.StatisticsError):
                self._restore(known)

    def refresh(self) -> None:
        """Begin to measure again if the machine was busy the last time, and that is a while ago."""
        old = time.time() - self.curve.measured > _AGAIN_AFTER
        if self.curve.busy and old and not self._timings:
            self._left = list(self._jobs)

    def forget(self) -> None:
        """Measure again, whatever is known."""
        self.curve = CostCurve({place: _typical(place) for place in self.curve.points})
        self._timings, self._left = [], []

    @property
    def missing(self) -> int:
        """How many timings are still to come, at most."""
        if self.complete:
            return 0
        return _ROUNDS * len(self._jobs) - len(self._timings)

    @property
    def complete(self) -> bool:
        """Whether all is timed that is to be timed."""
        return self.curve.spread is not None and not self._left

    def wanted(self) -> Job | None:
        """The step to be timed next, or ``None``."""
        if not self._left and self.curve.spread is None:
            self._left = list(self._jobs)
        return self._left[0] if self._left else None

    def note(self, seconds: float) -> None:
        """Take the time of the step that was ``wanted``."""
        self._timings.append((self._left.pop(0), seconds))
        if self._left:
            return
        spent = sum(seconds for _, seconds in self._timings)
        rounds = len(self._timings) // len(self._jobs)
        if rounds < _ROUNDS and spent * (1 + 1 / rounds) < _SECONDS:
            # In one order always, slowness in step with the rounds were taken for a point's own.
            self._left = self._order.sample(self._jobs, len(self._jobs))
            return
        found, before = _curve(self._timings, time.time()), self.curve.spread
        worse = before is not None and found.spread is not None and found.spread > before
        self.curve = replace(self.curve, measured=found.measured) if worse else found
        self._timings, self._saved = [], -1

    def save(self) -> None:
        """Write what is new to the user's cache."""
        if len(self._timings) == self._saved:
            return
        self._saved = len(self._timings)
        values: dict[str, Any] = {
            "facts": self._facts,
            "names": self._names,
            "timings": self._timings,
        }
        if self.curve.spread is not None:
            values["curve"] = vars(self.curve)
        user_cache.write(self._path, values)

    def _restore(self, known: dict[str, Any]) -> None:
        curve, timings = known.get("curve"), known["timings"]
        if curve is not None:
            found = read_curve(curve)
            points = {place: found.points[place] for place in self.curve.points}
            self.curve = replace(found, points=points)
        self._left = list(self._jobs) if timings else []
        for (place, nodes), seconds in timings:
            if (place, nodes) not in self._left:
                break
            self._left.remove((place, nodes))
            self._left.insert(0, (place, nodes))
            self.note(float(seconds))
        self._saved = len(self._timings)


def read_curve(values: Mapping[str, Any]) -> CostCurve:
    """The curve of a file in the user's cache.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    points = {
        place: tuple((int(n), float(s)) for n, s in found)
        for place, found in dict(values["points"]).items()
    }
    numbers = [float(values[name]) for name in ("spread", "rounds", "measured")]
    if min(s for found in points.values() for _, s in found) <= 0:
        raise ValueError("a step takes no time")
    if not {"plain", "none"} & points.keys():
        raise ValueError("no step without guesses was timed")
    return CostCurve(points, numbers[0], int(numbers[1]), numbers[2])


def _sizes(place: Place, places: Sequence[Place]) -> tuple[int, ...]:
    """Sizes to be timed; a single node without streams is a plain step where there is one."""
    if place == "plain":
        return (1,)
    return _SIZES[1:] if place == "none" and "plain" in places else _SIZES


def _typical(place: Place) -> tuple[tuple[int, float], ...]:
    return tuple(zip(_SIZES, _TYPICAL[place], strict=False))


def _curve(timings: Sequence[tuple[Job, float]], now: float) -> CostCurve:
    """The curve that rounds of timings show.

    The machine may run faster in one round than in another, so each timing is first divided by how
    slow its round was: the median, over the jobs, of their time in it over their usual time.
    """
    jobs = len({job for job, _ in timings})
    rounds = [timings[start : start + jobs] for start in range(0, len(timings), jobs)]
    steady = _by_job(timings)
    for _ in range(2):
        usual = {job: statistics.median(found) for job, found in steady.items()}
        slowness = [statistics.median(s / usual[job] for job, s in one) for one in rounds]
        pairs = zip(rounds, slowness, strict=True)
        steady = _by_job([(job, s / slow) for one, slow in pairs for job, s in one])
    points: dict[Place, list[tuple[int, float]]] = defaultdict(list)
    for place, nodes in sorted(steady):
        points[place].append((nodes, statistics.median(steady[place, nodes])))
    spread = statistics.median(map(_spread, steady.values()))
    ascending = {place: _ascending(found) for place, found in points.items()}
    return CostCurve(ascending, spread, len(rounds), now)


def _by_job(timings: Sequence[tuple[Job, float]]) -> dict[Job, list[float]]:
    found: dict[Job, list[float]] = defaultdict(list)
    for job, seconds in timings:
        found[job].append(seconds)
    return found


def _spread(seconds: Sequence[float]) -> float:
    if len(seconds) < 2:
        return 1.0  # nobody knows
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / middle


def _ascending(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
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
