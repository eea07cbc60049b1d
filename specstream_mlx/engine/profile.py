"""The time that each part of a generation takes.

MLX computes when it is asked to, so a part can only be timed by waiting for it. A profiled run
waits at the border of every part, which other runs do not: its shares are meaningful, its total
is more than they take.
"""

import time
from typing import Any

import mlx.core as mx

PARTS = ("prefill", "MHA rows", "pruning", "MSA rows", "head", "verify", "compaction", "host")
"""The parts of a generation. ``head`` has the streams' rows and their best tokens too, and
``host`` is reading the result, growing the next tree, and whatever is done with the tokens."""


class Profile:
    """Seconds of each of ``PARTS`` of one generation, or of several one after the other.

    Args:
        measures: whether it measures anything; if not, it does not wait for the device either.
    """

    def __init__(self, measures: bool = True) -> None:
        self._measures = measures
        self._seconds: dict[str, list[float]] = {name: [] for name in PARTS}  # of each run
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin a generation; time before this is not counted."""
        self._last = time.perf_counter()

    def border(self, part: str, *arrays: Any) -> None:
        """End a part: wait for its arrays and add the time since the last border to it."""
        if not self._measures:
            return
        mx.eval([array for array in arrays if array is not None])
        now = time.perf_counter()
        self._seconds[part].append(now - self._last)
        self._last = now

    @property
    def seconds(self) -> float:
        """Seconds of all parts together, the building of the graph included."""
        return sum(map(sum, self._seconds.values()))

    def report(self) -> dict[str, dict[str, float]]:
        """Return ``seconds``, ``calls`` and ``share`` of all parts, of each part that was run."""
        total = self.seconds
        return {
            name: {"seconds": sum(runs), "calls": len(runs), "share": sum(runs) / total}
            for name, runs in self._seconds.items()
            if runs
        }


NO_PROFILE = Profile(measures=False)
