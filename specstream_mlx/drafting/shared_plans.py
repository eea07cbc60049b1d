"""Plans that rank 0 makes and all ranks carry out, where several processes run one model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..distributed.ranks import Ranks
from ..engine.guesses import StreamGuesses
from ..engine.plan import Plan
from ..engine.tree import NOTHING_VERIFIED, DraftTree, Verified
from . import Drafting, Sharing
from .batch_cost import BatchCosts


class ToldPlans:
    """A ``Drafting`` of rank 0 that tells the other ranks every plan.

    Args:
        drafting: makes the plans.
        ranks: all ranks.
    """

    def __init__(self, drafting: Drafting, ranks: Ranks):
        self._drafting, self._ranks = drafting, ranks

    def first(self, root: int) -> Plan:
        """Plan the first step; see ``Drafting``."""
        return self._tell(self._drafting.first(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Learn from a step; see ``Drafting``."""
        self._drafting.accept(plan, tokens, seconds)

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Plan a step; see ``Drafting``."""
        return self._tell(self._drafting.plan(root, guesses, verified))

    def beside(self, texts: int) -> BatchCosts | None:
        """Weigh what a pass of so many texts costs; see ``Sharing``."""
        return self._drafting.beside(texts) if isinstance(self._drafting, Sharing) else None

    def finish(self) -> None:
        """Keep what is to outlive the text."""
        self._drafting.finish()

    def _tell(self, plan: Plan) -> Plan:
        self._ranks.tell("plan", _values(plan))
        return plan


class HeardPlans:
    """A ``Drafting`` of another rank: the plans of rank 0, which alone learns from the steps.

    Args:
        ranks: all ranks.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks

    def first(self, root: int) -> Plan:
        """Wait for the plan of the first step."""
        return self._hear()

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Do nothing: rank 0 learns."""

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Wait for the plan of the next step."""
        return self._hear()

    def finish(self) -> None:
        """Do nothing: rank 0 keeps what there is to keep."""

    def _hear(self) -> Plan:
        return _plan(self._ranks.told("plan"))


def _values(plan: Plan) -> dict[str, Any]:
    """The plan as values of JSON."""
    tree = plan.tree
    return {
        "tree": [tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()],
        "log_probs": None if tree.log_probs is None else tree.log_probs.tolist(),
        "expand": [None if one is None else one.tolist() for one in plan.expand],
        "rest": [
            plan.place, plan.streams, plan.width, plan.beside, plan.keep, plan.threshold
        ],
    }  # fmt: skip


def _plan(values: dict[str, Any]) -> Plan:
    """The plan of ``_values``."""
    tokens, parents, depths = (np.array(one, np.int32) for one in values["tree"])
    log_probs = None if values["log_probs"] is None else np.array(values["log_probs"])
    tree = DraftTree(tokens, parents, depths, log_probs)
    expand = tuple(None if one is None else np.array(one) for one in values["expand"])
    place, streams, width, beside, keep, threshold = values["rest"]
    return Plan(tree, place, streams, width, expand, beside, keep, threshold)
