"""How a step drafts: the shape of its tree, what pruning keeps, where the streams run."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .config import StreamConfig, UserError
from .tree import DraftTree, best_first_tree, full_tree

MAX_TREE_SIZE = 4096

StreamPlacement = Literal["beside", "deferred", "none"]
"""``beside`` every kept node, ``deferred`` to a pass for the accepted node (lossless), or none."""


@dataclass(frozen=True)
class DraftSettings:
    """How a step drafts and what it keeps.

    Attributes:
        num_streams: depth of the tree; ``None``: all trained streams; 0: no drafts.
        tree_width: children of every node in a full tree, and candidates per stream.
        tree_size: nodes drafted best-first by joint probability; ``None``: the full tree.
        draft_threshold: joint probability below which a node is not drafted; ``None``: no bound.
        max_nodes: nodes kept by early-exit pruning, the root included; ``None``: no pruning.
        prune_threshold: probability below which an edge's subtree is dropped.
        deferred: lossless only: run the streams for the accepted node alone, after verification.
        speculation: ``False``: an empty tree, one token a step.
    """

    num_streams: int | None = None
    tree_width: int = 4
    tree_size: int | None = 8
    draft_threshold: float | None = None
    max_nodes: int | None = None
    prune_threshold: float | None = None
    deferred: bool = True
    speculation: bool = True

    def __post_init__(self) -> None:
        for name in ("tree_width", "tree_size", "max_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}, expected an integer of at least 1")
        if self.num_streams is not None and self.num_streams < 0:
            raise UserError(f"num_streams is {self.num_streams}, expected at least 0")
        for name in ("draft_threshold", "prune_threshold"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise UserError(f"{name} is {value}, expected a probability below 1")

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted, given streams."""
        return self.speculation and self.num_streams != 0

    def placement(self, streams: StreamConfig | None) -> StreamPlacement:
        """Where the streams of a step run; in shared mode beside every node, drafts or not."""
        if streams is not None and streams.mode == "shared":
            return "beside"
        if streams is None or not self.speculates:
            return "none"
        return "deferred" if self.deferred else "beside"

    def grow(self, root: int, candidates: np.ndarray, log_probs: np.ndarray) -> DraftTree:
        """The next tree from the streams' (gamma, k) candidates."""
        depth = len(candidates) if self.num_streams is None else self.num_streams
        candidates = candidates[:depth, : self.tree_width]
        log_probs = log_probs[:depth, : self.tree_width]
        if self.tree_size is None and self.draft_threshold is None:
            return full_tree(root, candidates, self.tree_width)
        return best_first_tree(root, candidates, log_probs, self.tree_size, self.draft_threshold)

    def describe(self) -> str:
        """A few words for people."""
        if not self.speculates:
            return "no drafts"
        if self.tree_size is None:
            shape = "chain" if self.tree_width == 1 else f"full {self.tree_width}-ary"
        else:
            shape = f"best-first, {self.tree_size} nodes, width {self.tree_width}"
        if self.num_streams is not None:
            shape += f", depth {self.num_streams}"
        if self.draft_threshold is not None:
            shape += f", nodes above {self.draft_threshold}"
        if self.max_nodes is not None:
            shape += f", pruned to {self.max_nodes}"
        if self.prune_threshold is not None:
            shape += f", edges above {self.prune_threshold}"
        return shape

    def check(self, vocab_size: int, streams: StreamConfig | None) -> None:
        """Whether these settings fit a model and its streams.

        Raises:
            UserError: the first setting that does not.
        """
        if self.tree_width > vocab_size:
            raise UserError(
                f"tree_width is {self.tree_width}, expected at most the vocabulary's {vocab_size}"
            )
        if streams is None:
            return
        if self.num_streams is not None and self.num_streams > streams.num_streams:
            raise UserError(
                f"num_streams is {self.num_streams}, the adapter has {streams.num_streams}"
            )
        depth = streams.num_streams if self.num_streams is None else self.num_streams
        full = sum(self.tree_width**level for level in range(1, depth + 1))
        drafted = min(full, self.tree_size or full)
        if drafted > MAX_TREE_SIZE:
            raise UserError(
                f"the draft tree has {drafted} nodes, expected at most {MAX_TREE_SIZE}: "
                "lower tree_size or tree_width"
            )
        prunes = self.max_nodes is not None or self.prune_threshold is not None
        if prunes and not streams.pruner_rank:
            raise UserError("max_nodes and prune_threshold need a pruner, the adapter has none")


LIKELY_DRAFTS = DraftSettings(draft_threshold=0.2)
"""What is drafted where nobody says otherwise: rows are not free, so no unlikely nodes."""


DRAWN_DRAFTS = DraftSettings(tree_width=1, tree_size=None)
"""The same where drafts are drawn, and so must not decide which of them is kept."""


def draft_settings(drawn: bool = False, **fields: Any) -> DraftSettings:
    """The default settings with some fields replaced.

    Args:
        drawn: whether the drafts are drawn (the verify rule ``rejection``).
        **fields: of ``DraftSettings``; a tree whose shape is given has no threshold.
    """
    if drawn:
        return replace(DRAWN_DRAFTS, **fields)
    shaped = "tree_width" in fields or "tree_size" in fields
    return replace(DraftSettings() if shaped else LIKELY_DRAFTS, **fields)
