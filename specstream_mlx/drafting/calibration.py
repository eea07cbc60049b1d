"""How often guesses are right in a text, and one probability for all that propose a token."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..engine.guess import NO_GUESSES, Guesses, Path, StreamGuesses
from .best_first import Children
from .proposer import Proposer

# Studied: benchmarks/NOTES.md, "Which constants of the rule matter?".
START = 0.8  # hits over expected hits when a text begins: unfamiliar text wants less (studied)
WEIGHT = 8.0  # expected hits that ``START`` counts as: flat in the study
MEMORY = 16.0  # expected hits that are remembered: flat in the study
MOST = 0.99  # probability of a guess at most
MOST_TOGETHER = 0.995  # probability of all guesses of a depth at most
PRIOR_WEIGHT = 4  # guesses that a prior of lookup counts as (studied)
LOOKUP_MEMORY = 64  # guesses of lookup that are remembered: flat in the study
GAIN_MEMORY = 4  # rounds of a proposer that its average gain is of
LONGEST_PAUSE = 64  # steps that a proposer pauses at most
# Where streams and lookup guess the same token; benchmarks/NOTES.md, "How should the two drafters'
# probabilities be joined?".
UNLISTED = 0.03  # of what the streams' candidates leave over, a token's that lookup alone proposes
COINCIDENCE = 0.05  # share of lookup's wrong tokens that the streams propose too

_LEAST = 1e-9


def averaged(average: float, count: int, value: float, memory: int) -> tuple[float, int]:
    """Update an average of ``count`` values by one more; at most ``memory`` values count."""
    count = min(count + 1, memory)
    return average + (value - average) / count, count


class HitRates:
    """Running averages of how often guesses were right, by their kind; each starts at ``prior``."""

    def __init__(self, prior: Callable[[Any], float]):
        self._prior = prior
        self._known: dict[Hashable, tuple[float, int]] = {}  # rate, and the guesses it counts as

    def __getitem__(self, kind: Hashable) -> float:
        """Return a kind's rate, which is never 0, even if a kind is always wrong."""
        return max(self._known.get(kind, (self._prior(kind), 0))[0], _LEAST)

    def judge(self, kind: Hashable, right: bool) -> None:
        """Record whether a guess was right."""
        rate, weight = self._known.get(kind, (self._prior(kind), PRIOR_WEIGHT))
        # A bounded weight lets the average follow a text that changes.
        more = min(weight + 1, LOOKUP_MEMORY)
        self._known[kind] = rate + (right - rate) / (weight + 1), more


class Backoff:
    """Exponential backoff for a proposer that does not pay."""

    def __init__(self) -> None:
        self._gain, self._rounds = 0.0, 0
        self._left, self._span, self._due = 0, 1, False

    def note(self, gain: float) -> None:
        """Record how many tokens a round of guesses got right."""
        self._gain, self._rounds = averaged(self._gain, self._rounds, gain, GAIN_MEMORY)

    def begin(self, cost: float) -> bool:
        """Begin a step whose guesses cost so many tokens; returns whether the proposer pauses."""
        if not cost or not self._rounds:
            return False
        if self._left:
            self._left -= 1
            return True
        if self._due:  # once more, after the pause
            self._due = False
            return False
        if self._gain >= cost:
            self._span = max(1, self._span // 2)
            return False
        self._left, self._due = self._span - 1, True
        self._span = min(2 * self._span, LONGEST_PAUSE)
        return True


# Guesses that the text has not passed, the tokens written since, whether all were first guesses.
_Pending = tuple[StreamGuesses, Path, bool]


class StreamAverages:
    """Corrections of the streams' probabilities by their hits in one sequence.

    A probability is multiplied by hits over expected hits, of four kinds: [trunk, elsewhere], after
    first guesses only or not, and [first, other] guess of a depth. A guess is judged once the
    sequence has passed it, if every token before it was among the candidates of its depth.
    """

    def __init__(self) -> None:
        self.hits = [[START * WEIGHT] * 2 for _ in range(2)]
        self.expected = [[WEIGHT] * 2 for _ in range(2)]
        self.right = self.judged = 0  # first guesses for the next token
        self._pending: list[_Pending] = []
        self._newest = NO_GUESSES
        self._trunk: Path = ()
        self._behind: dict[Hashable, Guesses] = {}  # corrected; plain streams' by depth and trunk

    def take(self, guesses: StreamGuesses) -> None:
        """Take the guesses of a step, which later tokens will judge."""
        self._newest, self._trunk = guesses, ()
        while following := guesses.after(self._trunk):  # the path of first guesses
            self._trunk = (*self._trunk, following[0][0])
        self._behind.clear()
        if guesses.depth:
            self._pending.append((guesses, (), True))

    def after(self, path: Path) -> Guesses:
        """Return the newest guesses for the token after ``path``, corrected; empty: none."""
        guesses = self._newest.after(path)
        if not guesses:
            return guesses
        trunk = path == self._trunk[: len(path)]
        key = (len(path), trunk) if self._newest.parents is None else path
        if key not in self._behind:
            self._behind[key] = self._corrected(guesses, trunk)
        return self._behind[key]

    def accept(self, tokens: Sequence[int]) -> None:
        """Judge the guesses by the tokens that were written, the newest last."""
        for token in tokens:
            judged = [self._judge(*pending, token) for pending in self._pending]
            self._pending = [pending for pending in judged if pending]

    def factor(self, place: int, rank: int) -> float:
        """Return the factor on the probability of a guess of this rank, at [trunk, elsewhere]."""
        kind = min(rank, 1)
        return self.hits[place][kind] / self.expected[place][kind]

    def _corrected(self, guesses: Guesses, trunk: bool) -> Guesses:
        place = 0 if trunk else 1
        probabilities = [
            min(MOST, math.exp(score) * self.factor(place, rank))
            for rank, (_, score) in enumerate(guesses)
        ]
        scale = min(1.0, MOST_TOGETHER / max(sum(probabilities), _LEAST))
        logs = [math.log(max(probability * scale, _LEAST)) for probability in probabilities]
        return [(token, log) for (token, _), log in zip(guesses, logs, strict=True)]

    def _judge(
        self, guessed: StreamGuesses, path: Path, trunk: bool, token: int
    ) -> _Pending | None:
        """Count the guesses for this token; returns deeper ones if they may still be reached."""
        guesses = guessed.after(path)
        if not guesses:  # no stream guessed after this path
            return None
        if not path:
            self.right, self.judged = self.right + (guesses[0][0] == token), self.judged + 1
        hits, expected = (table[0 if trunk else 1] for table in (self.hits, self.expected))
        for rank, (guess, score) in enumerate(guesses):
            kind = min(rank, 1)
            hits[kind] += guess == token
            expected[kind] += math.exp(score)
        for kind in range(2):
            if expected[kind] > MEMORY:
                hits[kind] *= MEMORY / expected[kind]
                expected[kind] = MEMORY
        listed = any(guess == token for guess, _ in guesses)
        if not listed or len(path) + 1 >= guessed.depth:
            return None
        return guessed, (*path, token), trunk and guesses[0][0] == token


def pooled(streams: Guesses, others: Guesses) -> Guesses:
    """Merge the guesses of one stream and of lookup for the token after one node.

    By Bayes' rule with the streams' probabilities as the prior their odds multiply: lookup proposes
    the right token as often as it is right, a wrong one with probability ``COINCIDENCE``.
    """
    if not others:
        return streams
    shares = {token: math.exp(score) for token, score in streams}
    # What several sources together are all but sure of may sum to a little more than 1.
    left = max(0.0, 1 - sum(shares.values()))
    wrong = max(0.0, 1 - sum(math.exp(score) for _, score in others))
    weights = {token: share * wrong for token, share in shares.items()}
    for token, score in others:
        share = max(shares.get(token, 0.0), UNLISTED * left)
        weights[token] = share * math.exp(score) / COINCIDENCE
    total = sum(weights.values()) + left * wrong
    return [(token, math.log(weight / total)) for token, weight in weights.items() if weight]


def pool(proposers: Sequence[Proposer], streams: Children | None = None) -> Children:
    """Pool the guesses of a text's proposers and, where there are any, of its streams."""

    def children(path: Path) -> Guesses:
        guesses: Guesses = []
        for proposer in proposers:
            others = proposer.children(path)
            guesses = pooled(guesses, others) if guesses else others
        guessed = streams(path) if streams else []
        return pooled(guessed, guesses) if guessed else guesses

    return children
