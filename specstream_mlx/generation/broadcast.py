"""Rank 0's decisions for all ranks during generation: plans, and whether a step follows."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..distributed.ranks import Ranks
from ..engine.plan import DraftTree, Plan
from ..errors import UserError


class Broadcast:
    """Decisions of rank 0, on all ranks, with a checksum of all tokens so far."""

    def __init__(self, ranks: Ranks):
        self._ranks, self._checksum = ranks, 0

    def plan(self, plan: Plan | None) -> Plan:
        """Return rank 0's plan of a sequence's next step; the others have ``None``."""
        if plan is None:
            return _plan(self._ranks.receive("plan"))
        self._ranks.send("plan", _values(plan))
        return plan

    def goes_on(self, tokens: Sequence[int]) -> bool:
        """Whether rank 0 takes another step after the one that wrote ``tokens``."""
        self._checksum = zlib.crc32(np.array(tokens, np.int64).tobytes(), self._checksum)
        if self._ranks.is_first:
            self._ranks.send("step", self._checksum)
            return True
        received = self._ranks.receive("step")
        if received not in (None, self._checksum):
            raise UserError("the ranks have written different tokens, expected those of rank 0")
        return received is not None

    def over(self) -> None:
        """Tell the others that no step follows; they may have ended by themselves."""
        if self._ranks.is_first:
            self._ranks.send("step", None)


def _values(plan: Plan) -> dict[str, Any]:
    values, tree = {**vars(plan)}, plan.tree
    values["expand"] = [None if ids is None else ids.tolist() for ids in plan.expand]
    values["tree"] = [tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()]
    values["log_probs"] = None if tree.log_probs is None else tree.log_probs.tolist()
    return values


def _plan(values: dict[str, Any]) -> Plan:
    tokens, parents, depths = (np.array(numbers, np.int32) for numbers in values.pop("tree"))
    log_probs = values.pop("log_probs")
    tree = DraftTree(tokens, parents, depths, None if log_probs is None else np.array(log_probs))
    expand = (None if ids is None else np.array(ids) for ids in values.pop("expand"))
    return Plan(tree, expand=tuple(expand), **values)
