"""The cost of passes of several sequences, by their number and their rows.

A pass costs a part that its sequences share and a part for each row, so a draft must be likelier
to earn its row than in a pass of one. Shorter trees are filled up to the longest one's rows, so
all trees get the same most nodes::

    B * (1 + sum of G(node)) - r * (shared + row * B * nodes)

B is the number of sequences, G(k) the recent probability of a sequence's k-th likeliest node,
averaged over them, and r the recent tokens per second of passes of B sequences.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from .proposer import MOST_NODES, MOST_ROWS

RATE_MEMORY = 128.0  # tokens that r averages: from 32 to 512 within 2% (studied)
BATCH_MEMORY = 64  # passes of several after which times of another number of rows are forgotten
BATCH_TIMES = 5  # latest times of passes of several sequences for each number of rows

Line = tuple[float, float]  # seconds that all rows of a pass share, and seconds of each row

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
