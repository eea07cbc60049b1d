"""What may come next, as proposed beside the streams; it is drafted by both cuts.

A new one is one file beside this one, with a class that is a ``Proposal``, and its name in
``PROPOSALS``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..engine.guesses import Guesses, Path
from .best_first import Children
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
"""Makers of those that draft, from a prompt's token ids: by default, and with ``lookup`` in trees
of fixed settings."""


def together(
    proposals: Sequence[Proposal], streams: Children | None = None, doubt: float = 0.0
) -> Children:
    """What proposals and streams guess, pooled.

    Args:
        proposals: of one text.
        streams: their guesses behind a path.
        doubt: see ``pooled``.
    """

    def children(path: Path) -> Guesses:
        found: Guesses = []
        for proposal in proposals:
            others = proposal.children(path)
            found = pooled(found, others) if found else others
        guessed = streams(path) if streams else []
        return pooled(guessed, found, doubt) if guessed else found

    return children
