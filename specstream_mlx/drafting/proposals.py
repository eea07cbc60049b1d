"""Proposals of next tokens beside the streams'; both ``fixed`` and ``auto`` draft them.

A new one is one file beside this one, with a class that is a ``Proposal``; a line in ``PROPOSALS``;
and its name in ``options.generation.DRAFTERS``, by which users choose it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..engine.guesses import Guesses, Path
from ..loading import SpeculativeModel
from ..options.generation import DrafterOptions
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


@dataclass(frozen=True, eq=False)
class Material:
    """All that the proposals of one text may be made of.

    Attributes:
        prompt: token ids.
        options: what the user said of drafters, such as their sizes and files.
        model: base and adapter; ``None``: the model is elsewhere, in a package.
    """

    prompt: Sequence[int]
    options: DrafterOptions
    model: SpeculativeModel | None = None


def _lookup(material: Material) -> Lookup:
    options = material.options
    return Lookup(material.prompt, options.lookup_ngram, options.lookup_size)


PROPOSALS: dict[str, Callable[[Material], Proposal]] = {"lookup": _lookup}
"""Makers of proposals, by the names that users choose them by."""


def proposals_of(names: Sequence[str], material: Material) -> list[Proposal]:
    """Make the proposals of one text by their names."""
    return [PROPOSALS[name](material) for name in names]


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
