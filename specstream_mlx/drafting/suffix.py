"""Suffix decoding: what came after the longest repeated end of the text, and how often.

After SuffixDecoding (arXiv 2411.04975) and SAM-Decoding (arXiv 2411.10666): one suffix automaton of
the prompt and the text, and one of the answers that the process has written before with the same
vocabulary. The longer match drafts. A token's probability is its share of what followed there,
times how often guesses behind matches of that length were right in this text over how often they
were expected to be.
"""

from collections.abc import Sequence

from ..engine.guesses import Guesses, Path
from .earlier_answers import Answers, answers_of
from .hit_rates import HitShares
from .proposal import Material, Proposal
from .suffix_automaton import Match, SuffixAutomaton

_MOST_DEPTH = 32
_WIDTH = 4
_BOUNDS = (1, 2, 3, 4, 6, 10, 16)  # of the lengths of matches that are judged together


class Suffix(Proposal):
    """The suffix automata of one text.

    Args:
        material: see there; without a model or answers there are no earlier ones.
        factor: tokens to draft for each one that matches, ArcticInference's max_spec_factor.
    """

    def __init__(self, material: Material, factor: int = 4):
        self._own, model, answers = SuffixAutomaton(), material.model, material.answers
        self._factor = factor
        if answers is None:
            answers = Answers() if model is None else answers_of(model)
        self._answers, self._written = answers, list[int]()
        self._matches = Match(self._own), Match(answers.automaton)
        self._hits: HitShares[int] = HitShares()
        for token in material.prompt:
            self._read(token)

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens; each judges the guesses that were made before it."""
        for token in tokens:
            length, shares = _shares(max(self._matches, key=lambda match: match.length))
            if shares:
                self._hits.judge(_kind(length), shares, token)
            self._read(token)
            self._written.append(token)

    def children(self, path: Path) -> Guesses:
        """Guess what followed the longest repeated end of the text and ``path``."""
        best: Match | None = None
        for match in self._matches:
            if len(path) >= min(_MOST_DEPTH, self._factor * max(match.length, 1)):
                continue
            match = match.copy()
            for token in path:
                match.follow(token)
            if match.length and (best is None or match.length > best.length):
                best = match
        if best is None:
            return []
        length, shares = _shares(best)
        if not shares:
            return []
        return self._hits.corrected(_kind(length), shares)

    def finish(self) -> None:
        """Add the answer to those of the process."""
        self._answers.add(self._written)
        self._written = []

    def _read(self, token: int) -> None:
        for match in self._matches:  # before the text grows: its own end is no match
            match.follow(token)
        self._own.extend((token,))


def _kind(length: int) -> int:
    return sum(length > bound for bound in _BOUNDS)


def _shares(match: Match) -> tuple[int, list[tuple[int, float]]]:
    """Return a match's length, and its commonest followers with their shares of all."""
    followers = match.followers() if match.length else []
    total = sum(count for _, count in followers) + 1  # something new may follow
    return match.length, [(token, count / total) for token, count in followers[:_WIDTH]]
