"""Drafters: what one must be able to do, and which one the settings ask for.

What drafts by default is in ``proposals``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ..config import StreamConfig
from ..engine.guesses import StreamGuesses
from ..engine.plan import Plan
from ..engine.tree import DraftTree, root_only
from .hybrid import HybridDrafter
from .lookup import LookupDrafter
from .settings import DraftSettings
from .static_tree import StaticTreeDrafter
from .streams import StreamsDrafter


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
        plan_of: makes the plan of a tree, the same for every step but for the tree.
    """

    def __init__(self, drafter: Drafter, plan_of: Callable[[DraftTree], Plan]):
        self._drafter, self._plan_of = drafter, plan_of

    def first(self, root: int) -> Plan:
        """Plan a step without drafts; see ``Drafting``."""
        return self._plan_of(root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Let the drafter read the tokens."""
        self._drafter.accept(tokens)

    def plan(self, root: int, guesses: StreamGuesses) -> Plan:
        """Let the drafter grow the tree."""
        return self._plan_of(self._drafter.grow(root, guesses))

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
    return FixedDrafting(drafter, settings.plans(streams))


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
