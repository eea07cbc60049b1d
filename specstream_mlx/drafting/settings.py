"""Settings of drafts: the proposers, the tree's shape, pruning, and where the streams run."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from ..engine.draft_head import HeadConfig
from ..engine.plan import LIKELIEST, DraftTree, Plan, StreamPlace
from ..errors import MAX_TREE_SIZE, UserError
from ..hardware import device
from ..options import TREE_SIZE, DraftOptions, ProposerOptions, check_options, option
from ..stream_config import StreamConfig
from .draft_model import DraftModel
from .ngram import Lookup
from .proposer import MakeProposer

Guessing = StreamConfig | HeadConfig | None  # what guesses besides proposers


def _makers(options: ProposerOptions, looks_up: bool) -> list[MakeProposer]:
    """List functions that make a text's proposers; ``looks_up``: whether lookup is the default."""
    makers = list[MakeProposer](options.proposers)
    if options.draft_model is not None:
        makers.insert(0, partial(DraftModel, options.draft_model, options.num_draft_tokens))
    if looks_up if options.lookup is None else options.lookup:
        makers.insert(0, partial(Lookup, longest=options.lookup_ngram, depth=options.lookup_size))
    return makers


@dataclass(frozen=True)
class Proposers(ProposerOptions):
    """The proposers besides the streams, if the rule decides how much is drafted."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def makers(self) -> list[MakeProposer]:
        return _makers(self, looks_up=True)


USUAL = Proposers()


@dataclass(frozen=True)
class DraftSettings(DraftOptions):
    """Settings of a step's drafts; ``DraftOptions`` says what each field is.

    In shared mode all streams run, and ``num_streams`` limits the depth of the trees alone. Without
    ``tree_size`` the full tree is drafted, with proposers as many nodes as that and one lookup
    have. A value out of range, or two that exclude each other, are a ``UserError``.
    """

    # With the root 8 rows: Metal's fast attention kernel takes no more.
    tree_size: int | None = option(lambda: 8 if device.backend() == "cpu" else 7, TREE_SIZE)

    def __post_init__(self) -> None:
        check_options(self)
        if self.stream_nodes is not None:
            for name in ("max_nodes", "prune_threshold"):
                if getattr(self, name) is not None:
                    raise UserError(
                        f"stream_nodes and {name} were both given, expected one of them: streams "
                        "are placed before it is known which nodes pruning keeps"
                    )

    @property
    def makers(self) -> list[MakeProposer]:
        return _makers(self, looks_up=False) if self.speculation else []

    @property
    def speculates(self) -> bool:
        """True if streams, where the model has any, draft."""
        return self.speculation and self.num_streams != 0

    @property
    def full(self) -> bool:
        """True if trees are full ones of the streams' guesses, as in the paper (section 3.2)."""
        return self.tree_size is None and self.draft_threshold is None and not self.makers

    def placement(self, streams: Guessing) -> StreamPlace:
        if streams is None or not (streams.mode == "shared" or self.speculates):
            return "none"
        return "head" if isinstance(streams, HeadConfig) else "nodes"

    def streams_run(self, streams: StreamConfig | HeadConfig) -> int:
        """Count the streams that run, if any; the last ones may be left out, as none sees them."""
        if streams.mode == "shared" or self.num_streams is None:
            return streams.num_streams
        return min(self.num_streams, streams.num_streams)

    def plans(self, streams: Guessing) -> Callable[[DraftTree], Plan]:
        """Return a function that makes the plan of a step over a tree."""
        place = self.placement(streams)
        if streams is None or place == "none":
            return partial(Plan, place="none" if self.makers else "plain")
        count = self.streams_run(streams)
        guessing = count if self.num_streams is None else min(self.num_streams, count)
        return partial(
            Plan,
            place=place,
            streams=count,
            width=self.tree_width if self.speculates else 0,
            expand=self.expansion(guessing) if self.speculates else (),
            stream_nodes=self.stream_nodes,
            keep=self.max_nodes,
            threshold=self.prune_threshold,
        )

    def expansion(self, depth: int) -> tuple[np.ndarray | None, ...]:
        """Return ``Plan.expand``; a full tree expands all guesses."""
        if self.full:
            return tuple(np.arange(self.tree_width**level) for level in range(1, depth))
        return (LIKELIEST,) * (depth - 1)

    def most_nodes(self, depth: int) -> int:
        """The most nodes besides the root that a tree of ``depth`` streams can have."""
        size = self.tree_size
        full = sum(self.tree_width**level for level in range(1, depth + 1))
        if self.makers:  # their nodes are none of the full tree's
            return full + self.lookup_size if size is None else size
        return full if size is None else min(full, size)

    def check_drawn(self, streams: Guessing) -> None:
        """Check that only acceptance depends on the drafts, as the rule ``rejection`` needs."""
        if self.makers:
            raise UserError(
                "verify is 'rejection' and lookup, a draft model or another proposer drafts, whose "
                "drafts are not drawn, expected a tree of the streams' own"
            )
        if not self.speculates:
            return
        if streams is not None and streams.stream_head == "conditioned":
            raise UserError(
                "verify is 'rejection' and stream_head is 'conditioned', whose guesses depend on "
                "the tokens drawn before them, expected 'keyed' or 'greedy'"
            )
        for field in ("tree_size", "draft_threshold", "max_nodes", "prune_threshold"):
            if (value := getattr(self, field)) is not None:
                raise UserError(
                    f"verify is 'rejection' and {field} is {value}, which lets the drawn tokens "
                    "decide what is kept, expected a full tree, given by tree_width alone"
                )

    def check(self, vocab_size: int, streams: Guessing) -> None:
        """Check that these settings fit a model and its streams."""
        owner = f"{streams.kind} head" if isinstance(streams, HeadConfig) else "adapter"
        trained = streams.num_streams if streams is not None else 0
        if streams is not None:
            vocab_size = min(vocab_size, streams.draft_vocabulary or vocab_size)
        if self.tree_width > vocab_size:
            raise UserError(
                f"tree_width is {self.tree_width}, expected at most the vocabulary's {vocab_size}"
            )
        depth = trained if self.num_streams is None else self.num_streams
        if streams is not None and depth > trained:
            raise UserError(f"num_streams is {depth}, the {owner} has {trained}")
        drafted = self.most_nodes(min(depth, trained))
        if drafted > MAX_TREE_SIZE:
            raise UserError(
                f"the draft tree has {drafted} nodes, expected at most {MAX_TREE_SIZE}: "
                "lower tree_size or tree_width"
            )
        if self.speculation and self.placement(streams) == "none":
            for name in ("max_nodes", "prune_threshold", "stream_nodes"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name} is {getattr(self, name)}, but no streams run")
        if streams is None:
            return
        if self.stream_nodes is not None and isinstance(streams, HeadConfig):
            raise UserError(f"stream_nodes needs streams, the {owner} runs none")
        if self.stream_nodes is not None and streams.mode == "shared":
            raise UserError("stream_nodes needs an adapter in lossless mode, this is shared")
        prunes = self.max_nodes is not None or self.prune_threshold is not None
        if prunes and not streams.pruner_rank:
            raise UserError(f"max_nodes and prune_threshold need a pruner, the {owner} has none")


LIKELY_DRAFTS = DraftSettings(draft_threshold=0.2)
"""The default settings. Rows are not free, so unlikely nodes are not drafted."""

DRAWN_DRAFTS = DraftSettings(tree_width=1, tree_size=None)
"""The default for ``rejection``: drafts are drawn, and no choice of nodes may depend on them."""


def chosen_drafts(verify: object, **given: Any) -> DraftSettings | Proposers | None:
    """Translate a user's options; ``None``: the rule with its usual proposers."""
    # The text of ``rejection`` and ``typical`` depends on the drafts: these must not follow time.
    if verify == "rejection":
        return replace(DRAWN_DRAFTS, **given)
    if "tree_width" in given or "tree_size" in given:
        return DraftSettings(**given)
    if verify == "typical" or given.keys() - {field.name for field in fields(Proposers)}:
        return replace(LIKELY_DRAFTS, **given)
    return Proposers(**given) if given else None


def names_of(settings: DraftSettings | Proposers) -> list[str]:
    """Name the proposers besides the streams."""
    made: list[Any] = [getattr(make, "func", make) for make in settings.makers]  # of partials
    names: dict[Any, str] = {Lookup: "lookup", DraftModel: "draft-model"}
    return [names.get(maker) or str(getattr(maker, "__name__", "another")) for maker in made]


def describe(settings: DraftSettings | Proposers, guessing: str | None) -> str:
    """Describe drafts in a few words; ``guessing``: streams or a head, where there is one."""
    names, words = names_of(settings), "adaptive"
    if guessing and (isinstance(settings, Proposers) or settings.speculates):
        names.insert(0, guessing)
    if isinstance(settings, DraftSettings):
        size, width = settings.tree_size, settings.tree_width
        words = f"best-first, {size} nodes" if size else f"trees of width {width}"
    return f"{words}, from {' and '.join(names)}" if names else "no drafts"
