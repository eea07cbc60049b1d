"""Who drafts, and how much: proposals, and two cuts of what they propose, ``fixed``, ``rule``."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..engine.guesses import StreamGuesses
from ..engine.plan import Plan


@runtime_checkable
class Drafting(Protocol):
    """Plans the steps of one text, one after the other."""

    def first(self, root: int) -> Plan:
        """Plan the first step, which has nothing to go by.

        Args:
            root: the prompt's last token.
        """

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Learn from a step.

        Args:
            plan: what was done.
            tokens: that it wrote, the newest last.
            seconds: from when the step before it was read until it was; ``None``: unknown.
        """

    def plan(self, root: int, guesses: StreamGuesses) -> Plan:
        """Plan the step after the one accepted last.

        Args:
            root: the newest committed token, which has been accepted.
            guesses: the streams' for the tokens behind it.
        """

    def finish(self) -> None:
        """Keep what is to outlive the text, which has ended or was broken off."""
