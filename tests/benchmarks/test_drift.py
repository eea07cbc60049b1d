"""Timings on a machine whose speed changes while they are taken."""

import math
import random
import statistics

import pytest

from benchmarks.drift import without_drift

TRUE = {name: 1 + name / 10 for name in range(12)}


def timings(rounds, shuffled=True, period=95, noise=0.01):
    """Each of ``TRUE`` in turn, on a machine that becomes twice as slow and fast again."""
    draws, found = random.Random(0), []
    for _ in range(rounds):
        for name in draws.sample(list(TRUE), len(TRUE)) if shuffled else TRUE:
            slow = 1.5 + 0.5 * math.sin(2 * math.pi * len(found) / period)
            found.append((name, TRUE[name] * slow * math.exp(draws.gauss(0, noise))))
    return found


def spread(found):
    """By how much the names are off, one from another."""
    return statistics.stdev(math.log(found[name] / value) for name, value in TRUE.items())


def test_what_lasts_for_some_timings_is_taken_out():
    seen = timings(10)
    medians = {name: statistics.median(s for n, s in seen if n == name) for name in TRUE}
    assert spread(medians) > 0.04
    assert spread(without_drift(seen)) < 0.015


def test_steady_timings_and_single_ones_stay_as_they_are():
    assert without_drift(timings(1)) == dict(timings(1))
    steady = [(name, seconds) for _ in range(3) for name, seconds in TRUE.items()]
    assert without_drift(steady) == pytest.approx(TRUE)
    assert without_drift([("a", 2.0)]) == {"a": 2.0}
    assert without_drift([]) == {}
