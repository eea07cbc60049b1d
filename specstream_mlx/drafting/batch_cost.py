"""The cost of a pass of several texts, timed in the decoding loop, and how much is then drafted.

A pass costs a part that its texts share and a part for each row. The more texts, the more rows; so
a draft must be likelier to earn its row than in a pass of one text. Shorter trees are filled up to
the longest one's rows, which cost the same, so all trees of a pass get the same most nodes::

    B * (1 + sum of G(node)) - r * (shared + row * B * nodes)

B is the number of texts, G(k) the recent probability of a text's k-th likeliest node, averaged over
the texts, and r the recent tokens per second of passes of B texts.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .constants import BATCH_MEMORY, BATCH_TIMES, MOST_NODES, MOST_ROWS, RATE_MEMORY

Line = tuple[float, float]
"""Seconds that all rows of a pass share, and seconds of each row."""

_PRIOR = 1.0
"""Passes of twice the least rows that the solo steps' cost of a row counts as."""


class _Passes:
    """The newest passes of each number of rows, of which a line says what rows cost."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=BATCH_TIMES))
        self._newest: dict[int, int] = {}  # number of the newest pass
        self._count = 0
        self._line: Line | None = None

    def __bool__(self) -> bool:
        """Whether any pass was timed."""
        return bool(self._recent)

    def note(self, rows: int, seconds: float) -> None:
        """Take in a pass."""
        self._count += 1
        self._recent[rows].append(seconds)
        self._newest[rows] = self._count
        for size in [n for n, at in self._newest.items() if self._count - at > BATCH_MEMORY]:
            del self._recent[size], self._newest[size]  # so that it may be tried again
        self._line = None

    def line(self, least: int, solo: Line) -> Line:
        """Return the line through the passes.

        Args:
            least: rows of a pass that drafts nothing.
            solo: of steps of one text; its shape is believed before passes of different sizes were
                timed.
        """
        if not self._recent:
            return solo
        if self._line is None:
            self._line = self._fitted(least, solo)
        return self._line

    def _fitted(self, least: int, solo: Line) -> Line:
        """A least-squares line, drawn towards the slope of ``solo`` at the passes' mean."""
        sizes = sorted(self._recent, reverse=True)
        usual: list[float] = []
        for size in sizes:
            seconds = statistics.median_low(self._recent[size])
            # Fewer rows never take longer; if they seem to, other programs had the processor.
            usual.append(min(seconds, usual[-1]) if usual else seconds)
        weights = [len(self._recent[size]) for size in sizes]
        rows, level = (statistics.fmean(values, weights) for values in (sizes, usual))
        far = [size - rows for size in sizes]
        spread = sum(w * x * x for w, x in zip(weights, far, strict=True))
        product = sum(w * x * (y - level) for w, x, y in zip(weights, far, usual, strict=True))
        strength = _PRIOR * least * least
        believed = level * solo[1] / _seconds(solo, rows)
        slope = (product + strength * believed) / (spread + strength)
        slope = min(max(slope, 0.0), level / rows)
        return level - slope * rows, slope


@dataclass
class _Company:
    """Passes of one number of texts.

    Attributes:
        passes: times of those whose streams do not guess, and of those whose streams do.
        tokens, rows, count: sums over recent passes.
        gains, noted: sums of the probabilities of the likeliest nodes, and number of texts in them.
    """

    passes: tuple[_Passes, _Passes] = field(default_factory=lambda: (_Passes(), _Passes()))
    tokens: float = 0.0
    rows: float = 0.0
    count: float = 0.0
    gains: list[float] = field(default_factory=lambda: [0.0] * MOST_NODES)
    noted: float = 0.0


@dataclass(frozen=True)
class Share:
    """The part of a text in passes with others.

    Attributes:
        rate: recent tokens per second of all texts together.
        nodes: the most nodes of a tree, the root included.
        seconds: its share of a pass whose streams do not guess, and of one whose streams do.
        rows: seconds of a row more of every text, likewise.
    """

    rate: float
    nodes: int
    seconds: tuple[float, float]
    rows: tuple[float, float]

    def costs(self, guesses: bool) -> list[float]:
        """Return the seconds of its share by its nodes, from 0 to ``MOST_ROWS``.

        Up to ``nodes`` they are the same, since the rows are there; each further node is a row more
        of every text.
        """
        own, row = self.seconds[guesses], self.rows[guesses]
        return [own + row * max(0, nodes - self.nodes) for nodes in range(MOST_ROWS + 1)]


class BatchCosts:
    """Costs of passes of several texts of one model, by the number of texts."""

    def __init__(self) -> None:
        self._companies: dict[int, _Company] = {}

    def note(
        self, texts: int, rows: int, guesses: bool, tokens: int, seconds: float | None
    ) -> None:
        """Take in a pass.

        Args:
            texts: number of texts.
            rows: number of rows, those that fill up trees included.
            guesses: whether streams guessed.
            tokens: tokens that all texts got.
            seconds: the time of the pass; ``None``: something else was done meanwhile.
        """
        company = self._of(texts)
        if seconds is not None:
            company.passes[guesses].note(rows, seconds)
        kept = max(0.0, 1 - tokens / (RATE_MEMORY * texts))
        company.tokens = company.tokens * kept + tokens
        company.rows = company.rows * kept + rows
        company.count = company.count * kept + 1

    def note_gains(self, texts: int, probabilities: Sequence[float]) -> None:
        """Take in the probabilities of a text's nodes behind the root, the likeliest first."""
        company, kept = self._of(texts), 1 - 1 / RATE_MEMORY
        company.noted = company.noted * kept + 1
        for place in range(MOST_NODES):
            own = probabilities[place] if place < len(probabilities) else 0.0
            company.gains[place] = company.gains[place] * kept + own

    def share(self, texts: int, solo: tuple[Line, Line]) -> Share:
        """Return the share of one of so many texts.

        Args:
            texts: number of texts.
            solo: costs of one text's steps, without guesses and with them.
        """
        company = self._of(texts)
        lines = [one.line(texts, own) for one, own in zip(company.passes, solo, strict=True)]
        timed = [bool(one) for one in company.passes]
        if timed[0] != timed[1]:  # what was never timed is to the other as with one text
            other = int(timed[1])
            ratio = _seconds(solo[1 - other], texts) / _seconds(solo[other], texts)
            shared, row = lines[other]
            lines[1 - other] = shared * ratio, row * ratio
        rate = texts / _seconds(lines[0], texts)
        if company.count:
            shared, row = lines[1]
            rate = max(rate, company.tokens / (shared * company.count + row * company.rows))
        nodes, row = 1, lines[1][1]
        while nodes < MOST_NODES and company.gains[nodes - 1] > rate * row * company.noted:
            nodes += 1
        first, second = (_seconds(line, texts * nodes) / texts for line in lines)
        return Share(rate, nodes, (first, second), (texts * lines[0][1], texts * lines[1][1]))

    def _of(self, texts: int) -> _Company:
        return self._companies.setdefault(texts, _Company())


def _seconds(line: Line, rows: float) -> float:
    """Seconds of a pass of so many rows."""
    shared, row = line
    return shared + row * rows
