"""Trees of the shape that a user gave, made of all proposals."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..engine.guesses import Guesses, Path, StreamGuesses
from ..engine.plan import Plan
from ..engine.tree import DraftTree, root_only
from ..engine.verify.rule import VerifyRule
from ..loading import SpeculativeModel
from ..options.generation import DrafterOptions
from . import constants
from .best_first import all_nodes, best_nodes, tree_of, with_paths
from .corrections import StreamAverages
from .earlier_answers import Answers
from .proposal import FREE, NOTHING_VERIFIED, Material, Proposal, Verified
from .proposals import beside, proposals_of, together
from .settings import DraftSettings


class Drafter(Protocol):
    """A grower of the draft trees of one text."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Read the tokens that were written since the last call, the newest last."""

    def grow(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> DraftTree:
        """Grow the next tree; see ``Drafting.plan`` for the arguments."""

    def finish(self) -> None:
        """Keep what is to outlive the text."""


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

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Let the drafter grow the tree."""
        return self._plan_of(self._drafter.grow(root, guesses, verified))

    def finish(self) -> None:
        """Let the drafter keep what is to outlive the text."""
        self._drafter.finish()


class FixedTrees:
    """A ``Drafter`` of trees of fixed settings.

    Streams guess the token at a depth, proposals the token after a path. Both guess behind every
    node, so lookup goes on where a stream has corrected a word, and streams branch off where a copy
    may end. Beside proposals the streams' probabilities are corrected by how often they were right
    in the text, or streams that are surer than right would take the nodes of a copy; alone they
    stay as they are.

    Args:
        settings: settings of the drafts.
        streams: whether the model has any.
        proposals: the proposals of this text, beside the streams.
    """

    def __init__(self, settings: DraftSettings, streams: bool, proposals: Sequence[Proposal] = ()):
        self._settings, self._streams = settings, streams and settings.speculates
        self._proposals = proposals
        self._averages = StreamAverages()

    def accept(self, tokens: Sequence[int]) -> None:
        """Let the proposals read the tokens, and judge the streams beside them."""
        if self._proposals:
            self._averages.accept(tokens)
        for proposal in self._proposals:
            proposal.accept(tokens)

    def grow(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> DraftTree:
        """Grow the full tree, or the likeliest nodes of all."""
        settings, depth = self._settings, guesses.depth if self._streams else 0
        for proposal in self._proposals:
            proposal.begin(verified, FREE)
        if settings.num_streams is not None:
            depth = min(depth, settings.num_streams)

        behind = guesses.behind
        if self._proposals:
            self._averages.take(guesses)
            behind = self._averages.behind

        def guessed(path: Path) -> Guesses:
            return behind(path)[: settings.tree_width] if len(path) < depth else []

        children = together(self._proposals, guessed)
        if settings.full:
            return tree_of(root, list(all_nodes(children)))
        nodes = best_nodes(children, settings.most_nodes(depth), settings.draft_threshold)
        return tree_of(root, with_paths(nodes, beside(self._proposals)))

    def finish(self) -> None:
        """Let the proposals keep what is to outlive the text."""
        for proposal in self._proposals:
            proposal.finish()


def fixed_drafting(
    settings: DraftSettings,
    model: SpeculativeModel,
    prompt: Sequence[int],
    rule: VerifyRule | None = None,
    answers: Answers | None = None,
) -> FixedDrafting:
    """Plan a text by the same settings in every step.

    Args:
        settings: settings of the drafts.
        model: base and adapter.
        prompt: token ids.
        rule, answers: see ``Material``.
    """
    streams = model.guessing
    nodes = settings.tree_size or constants.MOST_NODES
    material = Material(prompt, settings, model, rule, settings.tree_width, nodes, answers)
    proposals = proposals_of(settings.drafters, material)
    trees = FixedTrees(settings, streams is not None, proposals)
    return FixedDrafting(trees, settings.plans(streams))


def describe_drafters(names: Sequence[str], options: DrafterOptions) -> str:
    """Describe the drafters beside the streams in a few words."""
    lookup = f"lookup of up to {options.lookup_ngram}-grams to depth {options.lookup_size}"
    return " and ".join(lookup if name == "lookup" else name for name in names)


def describe(settings: DraftSettings, streams: bool) -> str:
    """Describe in a few words the drafts of a step and its pruning.

    Args:
        settings: settings of the drafts.
        streams: whether the model has any.
    """
    if not settings.drafts_with(streams or None):
        return "no drafts"
    others = describe_drafters(settings.drafters, settings)
    guessing = streams and settings.speculates
    size, width = settings.tree_size, settings.tree_width
    if not guessing:
        words = f"best-first, {settings.most_nodes(0)} nodes, {others}"
    elif size is not None:
        words = f"best-first, {size} nodes, width {width}"
    else:
        words = "chain" if width == 1 else f"full {width}-ary"
    if guessing and settings.num_streams:
        words += f", depth {settings.num_streams}"
    if guessing and others:
        words += f", with {others}"
    for said, value in (
        ("nodes above", settings.draft_threshold),
        ("pruned to", settings.max_nodes),
        ("edges above", settings.prune_threshold),
        ("streams beside", settings.stream_nodes if guessing else None),
    ):
        if value is not None:
            words += f", {said} {value}"
    return words
