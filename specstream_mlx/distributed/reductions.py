"""What a reduction over the ranks costs: every layer waits for two of them in every step."""

import statistics
import time
from dataclasses import dataclass

import mlx.core as mx

from .ranks import Ranks

_SMALL, _SMALL_ROUNDS = 4096, 40  # bytes: a row of 1024 numbers of 4
_LARGE, _LARGE_ROUNDS = 1 << 24, 3


@dataclass(frozen=True)
class ReductionCosts:
    """Measured reductions."""

    processes: int  # number of ranks
    backend: str  # MLX's distributed backend
    latency: float  # median seconds of a reduction of 4 kB
    bandwidth: float  # bytes of a reduction of 16 MB over its median seconds


def measure(ranks: Ranks) -> ReductionCosts:
    """Time reductions; all ranks call it at the same time."""
    small, large = _seconds(ranks, _SMALL, _SMALL_ROUNDS), _seconds(ranks, _LARGE, _LARGE_ROUNDS)
    return ReductionCosts(ranks.size, ranks.route[0], small, _LARGE / large)


def _seconds(ranks: Ranks, size: int, rounds: int) -> float:
    """Return the median seconds of a reduction of so many bytes."""
    array, taken = mx.ones((size // 4,)), []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        mx.eval(mx.distributed.all_sum(array, group=ranks.group))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])
