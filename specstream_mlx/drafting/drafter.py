"""Drafters: what one must be able to do, and which one the settings ask for.

A new drafter is one file beside this one and one line in ``make_drafter``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..config import StreamConfig
from .guesses import StreamGuesses
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

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
        """Grow the next tree.

        Args:
            root: the newest committed token, which has been accepted.
            guesses: the streams' for the tokens behind it.
        """

    def describe(self) -> str:
        """Say in a few words what the trees are like."""


@dataclass(frozen=True)
class Plan:
    """What the next step does.

    Attributes:
        tree: what it verifies.
        settings: what it keeps of the tree, and where its streams run.
        pipelined: nothing is drafted and no streams run, so that the call behind it may be enqueued
            before this one is read.
    """

    tree: DraftTree
    settings: DraftSettings
    pipelined: bool = False


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
        """Plan the step after the one accepted last; see ``Drafter.grow`` for the arguments."""

    def finish(self) -> None:
        """Keep what is to outlive the text, which has ended or was broken off."""


class FixedDrafting:
    """Drafts by the same settings in every step.

    Args:
        drafter: of this text.
        settings: of every step.
        pipelined: see ``Plan``.
    """

    def __init__(self, drafter: Drafter, settings: DraftSettings, pipelined: bool):
        self._drafter, self._settings, self._pipelined = drafter, settings, pipelined

    def first(self, root: int) -> Plan:
        """Plan a step without drafts; see ``Drafting``."""
        return Plan(root_only(root), self._settings, self._pipelined)

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Let the drafter read the tokens."""
        self._drafter.accept(tokens)

    def plan(self, root: int, guesses: StreamGuesses) -> Plan:
        """Let the drafter grow the tree."""
        tree = self._drafter.grow(root, guesses)
        return Plan(tree, self._settings, self._pipelined)

    def finish(self) -> None:
        """Do nothing: nothing outlives a text."""


class NoDrafter:
    """Drafts nothing."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: there is nothing to learn."""

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
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


def fixed_drafting(
    settings: DraftSettings,
    streams: StreamConfig | None,
    prompt: Sequence[int],
) -> FixedDrafting:
    """Plan a text by the same settings in every step.

    Args:
        settings: how to draft.
        streams: the mounted ones.
        prompt: token ids.
    """
    drafter = make_drafter(settings, streams is not None, prompt)
    plain = not settings.drafts_with(streams) and settings.placement(streams) == "none"
    return FixedDrafting(drafter, settings, pipelined=plain)


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
