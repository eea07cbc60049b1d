"""Proposals of next tokens beside the streams'; both ``fixed`` and ``rule`` draft them.

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
    """A source of next tokens of one text, with their probabilities."""

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
"""Makers of proposals from a prompt's token ids: used by default, and with ``lookup`` in trees of
fixed settings."""


def together(
    proposals: Sequence[Proposal], streams: Children | None = None, doubt: float = 0.0
) -> Children:
    """Pool the guesses of proposals and streams.

    Args:
        proposals: the proposals of one text.
        streams: function that returns the streams' guesses behind a path.
        doubt: see ``pooled``.
    """

    def children(path: Path) -> Guesses:
        guesses: Guesses = []
        for proposal in proposals:
            others = proposal.children(path)
            guesses = pooled(guesses, others) if guesses else others
        guessed = streams(path) if streams else []
        return pooled(guessed, guesses, doubt) if guessed else guesses

    return children
