"""A suffix automaton: all substrings of a text that grows, with the numbers of their occurrences.

Blumer et al., The smallest automaton recognizing the subwords of a text (1985). A state stands for
the substrings that occur at the same places; its link leads to the longest of their suffixes that
occurs at more places.
"""

from collections.abc import Iterable

START = 0
"""The state of the empty string."""

_LONGEST_CHAIN = 256


class SuffixAutomaton:
    """The automaton of one text.

    Appending a token takes constant time on average, and that of the links above its state: as many
    as its suffixes have different numbers of occurrences, of which ``_LONGEST_CHAIN`` are counted.

    Attributes:
        follow: for each state, the states after one more token.
        link: for each state, the state of its longest suffix elsewhere; -1 at the start.
        length: for each state, the length of its longest string.
        count: for each state, the number of places where its strings end.
    """

    def __init__(self) -> None:
        self.follow: list[dict[int, int]] = [{}]
        self.link, self.length, self.count = [-1], [0], [0]
        self._last = START

    def __len__(self) -> int:
        return len(self.link)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        new = self._add({}, START, self.length[self._last] + 1, 0)
        state = self._last
        while state != -1 and token not in self.follow[state]:
            self.follow[state][token] = new
            state = self.link[state]
        if state != -1:
            self.link[new] = self._split(state, token)
        self._last = state = new
        for _ in range(_LONGEST_CHAIN):
            if state <= START:
                break
            self.count[state] += 1
            state = self.link[state]

    def _split(self, state: int, token: int) -> int:
        """Return the state of ``state``'s longest string and ``token``, made if it is none yet."""
        after, length = self.follow[state][token], self.length[state] + 1
        if self.length[after] == length:
            return after
        copy = self._add(dict(self.follow[after]), self.link[after], length, self.count[after])
        while state != -1 and self.follow[state].get(token) == after:
            self.follow[state][token] = copy
            state = self.link[state]
        self.link[after] = copy
        return copy

    def _add(self, follow: dict[int, int], link: int, length: int, count: int) -> int:
        self.follow.append(follow)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.link) - 1


class Match:
    """The longest end of a text that occurs in an automaton, which may be another text's.

    Args:
        automaton: it may grow while the match is followed.

    Attributes:
        state, length: the state of that end, and its number of tokens.
    """

    def __init__(self, automaton: SuffixAutomaton):
        self.automaton = automaton
        self.state, self.length = START, 0

    def copy(self) -> "Match":
        """Copy the match, to go on another way."""
        other = Match(self.automaton)
        other.state, other.length = self.state, self.length
        return other

    def follow(self, token: int) -> None:
        """Go on with a token of the text."""
        automaton = self.automaton
        self.settle()
        while self.state != START and token not in automaton.follow[self.state]:
            self.state = automaton.link[self.state]
            self.length = automaton.length[self.state]
        if token in automaton.follow[self.state]:
            self.state = automaton.follow[self.state][token]
            self.length += 1

    def settle(self) -> None:
        """Go to the state that the matched string has, since states are split as a text grows."""
        automaton = self.automaton
        while self.state != START and self.length <= automaton.length[automaton.link[self.state]]:
            self.state = automaton.link[self.state]

    def followers(self) -> list[tuple[int, int]]:
        """List the tokens that came after the matched string, with how often, the commonest first.

        Negative tokens, which separate texts, are left out.
        """
        self.settle()
        automaton = self.automaton
        found = [
            (token, automaton.count[state])
            for token, state in automaton.follow[self.state].items()
            if token >= 0
        ]
        return sorted(found, key=lambda pair: -pair[1])
