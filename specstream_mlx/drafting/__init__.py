"""Drafting: proposals of tokens, and planners of the trees made of them, ``fixed`` and ``rule``."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..engine.guess import StreamGuesses
from ..engine.plan import NOTHING_VERIFIED, Plan, Verified
from .draft_stats import DraftStats


@runtime_checkable
class Planner(Protocol):
    """A planner of the steps of one sequence, one after the other."""

    @property
    def draft_stats(self) -> DraftStats | None:
        """Counts of the text so far, if the planner keeps them."""
        return None

    def first(self, root: int) -> Plan:
        """Plan the first step, without guesses, after ``root``, the prompt's last token."""

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Learn from a step's plan, its tokens, and its seconds (``None``: unknown)."""

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Plan the step after the newest token, ``root``, given the streams' guesses after it."""

    def share_pass(self, count: int) -> Any:
        """Plan for passes of ``count`` sequences; returns their ``BatchCosts``, if it uses any."""
        return None

    def finish(self) -> None:
        """Keep results for later sequences; this one has ended or was broken off."""
        return
