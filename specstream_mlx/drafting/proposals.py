"""What may come next, as proposed without streams; the rule drafts all of it where it pays.

A new one is one file beside this one, with a class that is a ``Proposal``, and its name in
``PROPOSALS``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..engine.guesses import Guesses, Path
from .lookup import Lookup
from .pooling import pooled


class Proposal(Protocol):
    """Says for one text what may come next, and how probably."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Read the tokens that were written since the last call, the newest last."""

    def children(self, path: Path) -> Guesses:
        """Guess the token after the text and ``path``.

        Args:
            path: drafted tokens behind the text; empty: none.

        Returns:
            Different tokens with their log-probabilities in nats, the best first. Their
            probabilities sum to less than 1; what is missing belongs to all other tokens.
        """


PROPOSALS: tuple[Callable[[Sequence[int]], Proposal], ...] = (Lookup,)
"""Makers of those that draft by default, from a prompt's token ids."""


def together(proposals: Sequence[Proposal], path: Path) -> Guesses:
    """What all of them guess after ``path``; see ``pooled``."""
    found: Guesses = []
    for proposal in proposals:
        others = proposal.children(path)
        found = pooled(found, others) if found else others
    return found
