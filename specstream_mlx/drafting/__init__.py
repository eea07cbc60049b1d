"""Drafting: proposals of tokens, and two ways to make trees of them, ``fixed`` and ``rule``."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..engine.guess import StreamGuesses
from ..engine.plan import NOTHING_VERIFIED, Plan, Verified
from .batch_cost import BatchCosts


@runtime_checkable
class Sharing(Protocol):
    """A drafting that weighs what a pass of several texts costs."""

    def beside(self, texts: int) -> BatchCosts | None:
        """Take note that the next pass is of so many texts, this one included.

        Returns:
            What is told of each pass; ``None``: nobody wants to know.
        """


@runtime_checkable
class Drafting(Protocol):
    """A planner of the steps of one text, one after the other."""

    def first(self, root: int) -> Plan:
        """Plan the first step, without guesses.

        Args:
            root: the prompt's last token.
        """

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Learn from a step.

        Args:
            plan: the plan of the step.
            tokens: the tokens that it wrote, the newest last.
            seconds: time from the reading of the step before to its own; ``None``: unknown.
        """

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Plan the step after the one accepted last.

        Args:
            root: the newest committed token, which has been accepted.
            guesses: the streams' guesses for the tokens after it.
            verified: the tree of the step accepted last, and the target's tokens in it.
        """

    def finish(self) -> None:
        """Keep results for later texts; this one has ended or was broken off."""
