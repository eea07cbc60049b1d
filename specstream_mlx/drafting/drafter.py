"""Drafters: what one must be able to do, and which one the settings ask for.

A new drafter is one file beside this one and one line in ``make_drafter``.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .hybrid import HybridDrafter
from .lookup import LookupDrafter
from .settings import DraftSettings
from .static_tree import StaticTreeDrafter
from .streams import StreamsDrafter
from .tree import DraftTree, root_only


class Drafter(Protocol):
    """Grows the draft tree of every step of one text."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Read the tokens that were written since the last call, the newest last."""

    def grow(self, root: int, candidates: np.ndarray, log_probs: np.ndarray) -> DraftTree:
        """Grow the next tree.

        Args:
            root: the newest committed token, which has been accepted.
            candidates: (gamma, k) the streams' token ids, best first; gamma is 0 where none ran.
            log_probs: (gamma, k) their log-probabilities in nats.
        """

    def describe(self) -> str:
        """Say in a few words what the trees are like."""


class NoDrafter:
    """Drafts nothing."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: there is nothing to learn."""

    def grow(self, root: int, candidates: np.ndarray, log_probs: np.ndarray) -> DraftTree:
        """Return the root alone."""
        return root_only(root)

    def describe(self) -> str:
        """Return "no drafts"."""
        return "no drafts"


def make_drafter(settings: DraftSettings, streams: bool, text: Sequence[int] = ()) -> Drafter:
    """Make the drafter that ``settings`` ask for.

    Args:
        settings: how to draft.
        streams: whether the model has any.
        text: token ids of the prompt, which lookup reads and does not learn from.
    """
    if not settings.drafts_with(streams or None):
        return NoDrafter()
    if not (streams and settings.speculates):
        return LookupDrafter(settings, text)
    drafter: StreamsDrafter | StaticTreeDrafter = StreamsDrafter(settings)
    if settings.static_tree is not None:
        drafter = StaticTreeDrafter(
            settings.static_tree,
            settings.num_streams,
            settings.tree_width,
            settings.tree_size,
            settings.draft_threshold,
        )
    return HybridDrafter(drafter, settings, text) if settings.lookup else drafter


def describe(settings: DraftSettings, streams: bool) -> str:
    """Say in a few words how a step drafts and what it keeps.

    Args:
        settings: how to draft.
        streams: whether the model has any.
    """
    words = make_drafter(settings, streams).describe()
    if settings.drafts_with(streams or None):
        if settings.draft_threshold is not None:
            words += f", nodes above {settings.draft_threshold}"
        if settings.max_nodes is not None:
            words += f", pruned to {settings.max_nodes}"
        if settings.prune_threshold is not None:
            words += f", edges above {settings.prune_threshold}"
        if settings.stream_nodes is not None and streams and settings.speculates:
            words += f", streams beside {settings.stream_nodes}"
    return words
