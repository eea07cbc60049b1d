"""Suffix decoding: what came after the longest repeated end of the text, and how often.

After SuffixDecoding (arXiv 2411.04975) and SAM-Decoding (arXiv 2411.10666): one suffix automaton of
the prompt and the text, and one of earlier answers with the same vocabulary. The longer match
drafts. A token's probability is its share of what followed there, corrected by how often guesses
after matches of that length were right in this text.

The automaton is Blumer et al.'s (The smallest automaton recognizing the subwords of a text, 1985):
a state stands for the substrings that occur at the same places; its link leads to the longest of
their suffixes that occurs at more places.
"""

from collections.abc import Iterable, Sequence
from copy import copy

from specstream_mlx.drafting.proposer import Material, Proposer
from specstream_mlx.engine.guess import Guesses, Path

from .calibrated_shares import HitShares

_MOST_DEPTH, _WIDTH, _FACTOR = 32, 4, 4  # tokens drafted for each that matches
_BOUNDS = (1, 2, 3, 4, 6, 10, 16)  # of the lengths of matches that are judged as one kind
_LONGEST_CHAIN = 256  # links up to which occurrences are counted
_MOST_TOKENS = 100_000  # of earlier answers; a token takes some 600 bytes
_BETWEEN_TEXTS = -1


class SuffixAutomaton:
    """All substrings of a text that grows; appending a token takes constant time on average.

    By state: those after one more token (``follow``), the longest suffix elsewhere (``link``), and
    of its strings the longest's ``length`` and the ``count`` of places where they end.
    """

    def __init__(self) -> None:
        self.follow: list[dict[int, int]] = [{}]
        self.link, self.length, self.count = [-1], [0], [0]
        self._last = 0

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            new = self._add({}, 0, self.length[self._last] + 1, 0)
            state = self._last
            while state != -1 and token not in self.follow[state]:
                self.follow[state][token] = new
                state = self.link[state]
            if state != -1:
                self.link[new] = self._split(state, token)
            self._last = state = new
            for _ in range(_LONGEST_CHAIN):
                if state <= 0:
                    break
                self.count[state] += 1
                state = self.link[state]

    def _split(self, state: int, token: int) -> int:
        """Return the state of ``state``'s longest string and ``token``, made if it is none yet."""
        after, length = self.follow[state][token], self.length[state] + 1
        if self.length[after] == length:
            return after
        new = self._add(dict(self.follow[after]), self.link[after], length, self.count[after])
        while state != -1 and self.follow[state].get(token) == after:
            self.follow[state][token] = new
            state = self.link[state]
        self.link[after] = new
        return new

    def _add(self, follow: dict[int, int], link: int, length: int, count: int) -> int:
        self.follow.append(follow)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.link) - 1


class Match:
    """The longest end of a text that occurs in an automaton, which may be another text's."""

    def __init__(self, automaton: SuffixAutomaton):
        self.automaton = automaton
        self.state = self.length = 0

    def follow(self, token: int) -> None:
        automaton = self.automaton
        self._settle()
        while self.state and token not in automaton.follow[self.state]:
            self.state = automaton.link[self.state]
            self.length = automaton.length[self.state]
        if token in automaton.follow[self.state]:
            self.state = automaton.follow[self.state][token]
            self.length += 1

    def _settle(self) -> None:
        """Go to the matched string's own state, since states are split as a text grows."""
        automaton = self.automaton
        while self.state and self.length <= automaton.length[automaton.link[self.state]]:
            self.state = automaton.link[self.state]

    def shares(self) -> list[tuple[int, float]]:
        """The commonest tokens after the matched string, with their shares of all."""
        if not self.length:
            return []
        self._settle()
        follow, count = self.automaton.follow[self.state], self.automaton.count
        known = [(token, count[state]) for token, state in follow.items() if token >= 0]
        total = sum(times for _, times in known) + 1  # something new may follow
        best = sorted(known, key=lambda pair: -pair[1])[:_WIDTH]
        return [(token, times / total) for token, times in best]


class Answers:
    """Earlier answers, written with one vocabulary; when there are too many, it begins anew."""

    def __init__(self) -> None:
        self.automaton, self._tokens = SuffixAutomaton(), 0

    def add(self, tokens: Sequence[int]) -> None:
        if self._tokens + len(tokens) > _MOST_TOKENS:
            self.automaton, self._tokens = SuffixAutomaton(), 0
        if tokens:
            self.automaton.extend((_BETWEEN_TEXTS, *tokens[:_MOST_TOKENS]))
            self._tokens += len(tokens)


class Suffix(Proposer):
    """The suffix automata of one text; ``answers``, if any, gets the text when it has ended."""

    def __init__(self, material: Material, answers: Answers | None = None):
        self._text_automaton, self._answers = SuffixAutomaton(), answers or Answers()
        self._written: list[int] = []
        self._matches = Match(self._text_automaton), Match(self._answers.automaton)
        self._hits = HitShares()
        for token in material.prompt:
            self._read(token)

    def accept(self, tokens: Sequence[int]) -> None:
        """Read tokens; each judges the guesses that were made before it."""
        for token in tokens:
            longest = max(self._matches, key=lambda match: match.length)
            if shares := longest.shares():
                self._hits.judge(_kind(longest.length), shares, token)
            self._read(token)
            self._written.append(token)

    def children(self, path: Path) -> Guesses:
        """Guess what followed the longest repeated end of the text and ``path``."""
        best: Match | None = None
        for match in self._matches:
            if len(path) >= min(_MOST_DEPTH, _FACTOR * max(match.length, 1)):
                continue
            match = copy(match)
            for token in path:
                match.follow(token)
            if match.length and (best is None or match.length > best.length):
                best = match
        shares = best.shares() if best is not None else []
        return self._hits.corrected(_kind(best.length), shares) if best and shares else []

    def finish(self) -> None:
        self._answers.add(self._written)
        self._written = []

    def _read(self, token: int) -> None:
        for match in self._matches:  # before the text grows: its own end is no match
            match.follow(token)
        self._text_automaton.extend((token,))


def _kind(length: int) -> int:
    return sum(length > bound for bound in _BOUNDS)
