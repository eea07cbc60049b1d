"""Trees of the shape that a user gave, made of all proposals."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ..config import StreamConfig
from ..engine.guesses import Guesses, Path, StreamGuesses
from ..engine.plan import Plan
from ..engine.tree import DraftTree, root_only
from .best_first import all_nodes, best_first, tree_of
from .constants import DOUBT
from .lookup import Lookup
from .proposals import PROPOSALS, Proposal, together
from .settings import DraftSettings


class Drafter(Protocol):
    """A grower of the draft trees of one text."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Read the tokens that were written since the last call, the newest last."""

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
        """Grow the next tree; see ``Drafting.plan`` for the arguments."""


class FixedDrafting:
    """A ``Drafting`` with the same settings in every step.

    Args:
        drafter: the drafter of this text.
        plan_of: function that makes the plan of a step from its tree.
    """

    def __init__(self, drafter: Drafter, plan_of: Callable[[DraftTree], Plan]):
        self._drafter, self._plan_of = drafter, plan_of

    def first(self, root: int) -> Plan:
        """Plan a step without drafts."""
        return self._plan_of(root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Let the drafter read the tokens."""
        self._drafter.accept(tokens)

    def plan(self, root: int, guesses: StreamGuesses) -> Plan:
        """Let the drafter grow the tree."""
        return self._plan_of(self._drafter.grow(root, guesses))

    def finish(self) -> None:
        """Do nothing: nothing outlives a text."""


class FixedTrees:
    """A ``Drafter`` of trees of fixed settings.

    Streams guess the token at a depth, proposals the token after a path. Both guess behind every
    node, so lookup goes on where a stream has corrected a word, and streams branch off where a copy
    may end.

    Args:
        settings: settings of the drafts.
        streams: whether the model has any.
        text: token ids of the prompt.
    """

    def __init__(self, settings: DraftSettings, streams: bool, text: Sequence[int] = ()):
        self._settings, self._streams = settings, streams and settings.speculates
        self._proposals: list[Proposal] = []
        if settings.lookup and settings.speculation:
            lookup = partial(Lookup, longest=settings.lookup_ngram, depth=settings.lookup_size)
            makers = [lookup if maker is Lookup else maker for maker in PROPOSALS]
            self._proposals = [make(text) for make in makers]

    def accept(self, tokens: Sequence[int]) -> None:
        """Let the proposals read the tokens."""
        for proposal in self._proposals:
            proposal.accept(tokens)

    def grow(self, root: int, guesses: StreamGuesses) -> DraftTree:
        """Grow the full tree, or the likeliest nodes of all."""
        settings, depth = self._settings, guesses.depth if self._streams else 0
        if settings.num_streams is not None:
            depth = min(depth, settings.num_streams)

        def guessed(path: Path) -> Guesses:
            return guesses.behind(path)[: settings.tree_width] if len(path) < depth else []

        children = together(self._proposals, guessed, DOUBT)
        if settings.full:
            return tree_of(root, list(all_nodes(children)))
        return best_first(root, children, settings.most_nodes(depth), settings.draft_threshold)


def fixed_drafting(
    settings: DraftSettings, streams: StreamConfig | None, prompt: Sequence[int]
) -> FixedDrafting:
    """Plan a text by the same settings in every step.

    Args:
        settings: settings of the drafts.
        streams: configuration of the mounted streams; ``None``: there are none.
        prompt: token ids.
    """
    return FixedDrafting(FixedTrees(settings, streams is not None, prompt), settings.plans(streams))


def describe(settings: DraftSettings, streams: bool) -> str:
    """Describe in a few words the drafts of a step and its pruning.

    Args:
        settings: settings of the drafts.
        streams: whether the model has any.
    """
    if not settings.drafts_with(streams or None):
        return "no drafts"
    lookup = f"lookup of up to {settings.lookup_ngram}-grams to depth {settings.lookup_size}"
    guessing = streams and settings.speculates
    size, width = settings.tree_size, settings.tree_width
    if not guessing:
        words = f"best-first, {settings.most_nodes(0)} nodes, {lookup}"
    elif size is not None:
        words = f"best-first, {size} nodes, width {width}"
    else:
        words = "chain" if width == 1 else f"full {width}-ary"
    if guessing and settings.num_streams:
        words += f", depth {settings.num_streams}"
    if guessing and settings.lookup:
        words += f", with {lookup}"
    for said, value in (
        ("nodes above", settings.draft_threshold),
        ("pruned to", settings.max_nodes),
        ("edges above", settings.prune_threshold),
        ("streams beside", settings.stream_nodes if guessing else None),
    ):
        if value is not None:
            words += f", {said} {value}"
    return words
