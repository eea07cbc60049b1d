"""Hybrid drafting: one tree of what the streams and prompt lookup propose."""

from collections.abc import Sequence
from typing import Protocol

from ..engine.guesses import Guesses, Path, StreamGuesses
from ..engine.tree import DraftTree
from .best_first import Children, best_first
from .lookup import LookupDrafter
from .pooling import pooled
from .settings import DraftSettings

DOUBT = 0.05
"""Share by which uncorrected probabilities of streams are lowered where lookup proposes something
too. Streams are often surer than they are right, and else no match could outweigh them."""


class OfStreams(Protocol):
    """A drafter that drafts what streams guess."""

    def children(self, guesses: StreamGuesses) -> Children:
        """What it may draft behind a path."""

    def depth_of(self, guesses: StreamGuesses) -> int:
        """How deep its own trees may be."""

    def describe(self) -> str:
        """Say what its own trees are like."""


class HybridDrafter:
    """Drafts the most probable nodes, whether streams or lookup propose them.

    Streams guess what comes at a depth, n-grams what follows a path. Both are asked behind every
    node, so lookup goes on where a stream has corrected a word, and streams branch off where a copy
    may end. Where both guess, ``pooled`` says how probable each token is.

    Args:
        streams: the drafter of the streams' guesses.
        settings: size and threshold of the tree, and what n-grams are looked up.
        text: token ids of the prompt.
    """

    def __init__(self, streams: OfStreams, settings: DraftSettings, text: Sequence[int]):
        self._streams, self._lookup = streams, LookupDrafter(settings, text)
        self._settings = settings

    def accept(self, tokens: Sequence[int]) -> None:
        """Learn how often lookup is right, and append the tokens to the text."""
        self._lookup.accept(tokens)

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
        """Grow the next tree; see ``Drafter``."""
        streams, lookup = self._streams.children(guesses), self._lookup

        def children(path: Path) -> Guesses:
            guessed, found = streams(path), lookup.children(path)
            return pooled(guessed, found, DOUBT) if guessed else found

        size = self._settings.most_nodes(self._streams.depth_of(guesses))
        return best_first(root, children, size, self._settings.draft_threshold)

    def describe(self) -> str:
        """Say what the trees are like."""
        return f"{self._streams.describe()}, with lookup {self._lookup.reach()}"
