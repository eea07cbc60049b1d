"""The plan of one decoding step: values that whoever drafts has chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .tree import DraftTree

StreamPlace = Literal["plain", "none", "beside", "head"]
"""Where streams run: ``beside`` the nodes, or ``none``. ``plain`` is ``none`` where nothing is
drafted either: the call after such a step may be enqueued before its token is read. ``head``: none
run, and a draft head guesses after the accepted node."""

LIKELIEST: None = None
"""An expansion that takes the guesses of the highest joint probability, ``width`` of them."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of the next step.

    Attributes:
        tree: the tree to verify; its root is the newest committed token, which is not in the KV
            cache yet.
        place: where the streams run; in shared mode ``beside``, as the target sees them.
        streams: number of streams that run, from the first on.
        width: candidates of each stream for the next tree; 0: the streams guess nothing.
        expand: for each stream that guesses, but the last, the numbers of the guesses behind which
            the next stream guesses, counted over all paths of its depth with ``width`` candidates
            each; or ``LIKELIEST``. Plain streams ignore it.
        beside: number of nodes with streams: those that are most probably accepted last; ``None``:
            all, as always in shared mode.
        keep: nodes that early-exit pruning keeps at most, the root included; ``None``: any number.
        threshold: probability below which pruning drops an edge's subtree; ``None``: no edge.
    """

    tree: DraftTree
    place: StreamPlace
    streams: int = 0
    width: int = 0
    expand: tuple[np.ndarray | None, ...] = ()
    beside: int | None = None
    keep: int | None = None
    threshold: float | None = None

    @property
    def pipelined(self) -> bool:
        """True if the call after the step may be enqueued before the step is read."""
        return self.place == "plain"

    @property
    def runs_streams(self) -> bool:
        """True if any streams run."""
        return self.place == "beside"

    @property
    def prunes(self) -> bool:
        """True if early-exit pruning may drop nodes of the tree."""
        nodes = len(self.tree)
        fewer = self.keep is not None and self.keep < nodes
        return fewer or (self.threshold is not None and nodes > 1)


def widest(plans: Sequence[Plan], shared: Sequence[bool]) -> Plan:
    """Return the plan that asks for most; a pass of several sequences follows it, trees apart.

    No text depends on where lossless streams run, on what they guess or on what pruning drops, so
    where some are shared, all streams run beside all nodes.

    Args:
        plans: one for each sequence.
        shared: whether its streams are shared.
    """
    plan = max(plans, key=lambda plan: (plan.runs_streams, plan.width, len(plan.tree)))
    own = next((own for own, is_shared in zip(plans, shared, strict=True) if is_shared), plan)
    return plan if own is plan else replace(plan, place="beside", streams=own.streams, beside=None)
