"""Timing several things on a machine whose speed changes meanwhile."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

_AROUND = 2  # timings before, and as many behind
_PASSES = 4


def without_drift(timings: Sequence[tuple[Name, float]]) -> dict[Name, float]:
    """The median of each one's timings, each over how slow the machine was around it.

    That is the median, for the timings next to it, of their time over what they usually take. So
    all are to have their turns in random order, round by round: in the same order, slowness that
    comes in step with the rounds is taken for somebody's own. What had a single turn each stays as
    it is.
    """
    slowness = [1.0] * len(timings)
    for _ in range(_PASSES):
        usual = _medians(timings, slowness)
        off = [seconds / usual[name] for name, seconds in timings]
        slowness = [
            statistics.median(off[max(0, i - _AROUND) : i] + off[i + 1 : i + 1 + _AROUND] or [1.0])
            for i in range(len(off))
        ]
    return _medians(timings, slowness)


def _medians(timings: Sequence[tuple[Name, float]], slowness: Sequence[float]) -> dict[Name, float]:
    found: dict[Name, list[float]] = defaultdict(list)
    for (name, seconds), slow in zip(timings, slowness, strict=True):
        found[name].append(seconds / slow)
    return {name: statistics.median(values) for name, values in found.items()}
