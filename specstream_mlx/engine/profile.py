"""The time that each part of a generation takes.

MLX computes when it is asked to, so a part can only be timed by waiting for it. A profiled run
waits at the border of every part, which other runs do not: its shares are meaningful, its total
is more than they take.
"""

import time
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

PARTS = ("prefill", "MHA rows", "pruning", "MSA rows", "head", "verify", "compaction", "host")
"""The parts of a generation. ``head`` has the streams' rows and their best tokens too, and
``host`` is reading the result, growing the next tree, and whatever is done with the tokens."""


@dataclass
class PartTime:
    """The time that one part took, and how often it ran.

    Attributes:
        seconds: time in all, building the graph included.
        calls: number of runs.
    """

    seconds: float = 0.0
    calls: int = 0


class Profile:
    """Seconds of each of ``PARTS`` of one generation, or of several one after the other."""

    def __init__(self) -> None:
        self.parts = {name: PartTime() for name in PARTS}
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin a generation; time before this is not counted."""
        self._last = time.perf_counter()

    def border(self, part: str, *arrays: Any) -> None:
        """End a part: wait for its arrays and add the time since the last border to it."""
        mx.eval([array for array in arrays if array is not None])
        now = time.perf_counter()
        self.parts[part].seconds += now - self._last
        self.parts[part].calls += 1
        self._last = now

    @property
    def seconds(self) -> float:
        """Seconds of all parts together."""
        return sum(part.seconds for part in self.parts.values())

    def report(self) -> dict[str, dict[str, float]]:
        """Return ``seconds``, ``share`` of all parts and ``calls`` of each part that was run."""
        total = self.seconds
        return {
            name: {**vars(part), "share": part.seconds / total}
            for name, part in self.parts.items()
            if part.calls
        }


class NoProfile(Profile):
    """A profile that measures nothing, for generations that are not profiled."""

    def start(self) -> None:
        """Do nothing."""

    def border(self, part: str, *arrays: Any) -> None:
        """Do nothing; above all, do not wait for the device."""


NO_PROFILE = NoProfile()
