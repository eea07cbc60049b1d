"""Proposers, which suggest tokens in addition to the streams: one ``Proposer`` per sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..engine.guess import Guesses, Path
from ..engine.plan import Verified
from ..engine.verify.rule import VerifyRule
from ..loading.speculative_model import SpeculativeModel

MOST_NODES = 16  # of a step, the root included; 8 bring less (studied)
MOST_ROWS = 4 * MOST_NODES  # up to which costs differ: proposers may require more than MOST_NODES
WIDTH = 4  # candidates of each stream; NOTES, "How wide and how deep should a full tree be?"


@dataclass(frozen=True, eq=False)
class Material:
    """Everything that a proposer of one sequence may use."""

    prompt: Sequence[int]
    model: SpeculativeModel | None = None  # None: it is elsewhere, in a package
    rule: VerifyRule | None = None  # None: tokens are not drawn
    width: int = WIDTH  # candidates of each guess
    nodes: int = MOST_NODES - 1  # at most, besides the root


@dataclass(frozen=True)
class Price:
    """The value of the time that a proposer's guesses take."""

    rate: float = 0.0  # tokens that a plain step's time brings
    row: float = 0.0  # those that a further node's does
    plain: float | None = None  # seconds of a plain step; ``None``: unknown


FREE = Price()  # in trees of a given shape: they are filled, whatever it takes


class Proposer(Protocol):
    """A source of next tokens of one text; only the first two methods must be overridden."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Read the tokens that were written since the last call, the newest last."""

    def children(self, path: Path) -> Guesses:
        """Guess the token after the text and ``path``, drafted tokens after it.

        Returns different tokens with their log-probabilities in nats, the best first; their
        probabilities sum to less than 1.
        """

    def begin(self, verified: Verified, price: Price) -> None:
        """Prepare guesses after the text, which ``accept`` has read; ``children`` comes next.

        ``verified`` is the tree of the step that wrote the newest tokens.
        """
        return

    def required(self) -> Sequence[Path]:
        """List paths that the tree must contain because this proposer needs them."""
        return ()

    def spent(self) -> float:
        """Return the seconds that guesses have taken since the last call."""
        return 0.0

    def finish(self) -> None:
        """Keep results for later texts; this one has ended or was cancelled."""
        return


MakeProposer = Callable[[Material], Proposer]
"""Makes the proposer of a text; what ``proposers=`` takes, such as a class."""
