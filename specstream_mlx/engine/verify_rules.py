"""The verify rules of one generation: its sampler, its processors and what it drafted last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from ..config import UserError
from ..drafting.settings import DraftSettings
from ..drafting.tree import DraftTree
from . import verify
from .candidates import best_tokens, drawn_tokens
from .sampling import NodeProcessors, Sampling, draw, normalized, takes_arg_max
from .tree_nodes import TreeNodes

VerifyName = Literal["greedy", "sample", "rejection", "typical"]


@dataclass(frozen=True)
class Verdict:
    """What the target says to a tree; device arrays.

    Attributes:
        last: scalar int32, the last accepted node among the kept ones.
        predictions: (m,) int32; the one of ``last`` is the correction or bonus token.
        logits: (m, vocab) processed logits.
    """

    last: mx.array
    predictions: mx.array
    logits: mx.array


class VerifyRule:
    """``greedy`` and ``sample``: follow the target's own arg-maxes or draws.

    Args:
        sampler: of log-probabilities (rows, vocab), the rows independent of each other; ``None``:
            the arg-max.
        processors: see ``NodeProcessors``.
        prompt: token ids.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        processors: Sequence[LogitsProcessor] | None = None,
        prompt: Sequence[int] = (),
    ):
        self._sampler = None if takes_arg_max(sampler) else sampler
        self._processors = NodeProcessors(processors, prompt)

    def verify(self, tree: DraftTree, nodes: TreeNodes, logits: mx.array) -> Verdict:
        """Judge a tree.

        Args:
            tree: all of it.
            nodes: those kept.
            logits: (m, vocab) of the kept ones.
        """
        logits = self._processors(tree, nodes.kept, logits)
        predictions = self._predictions(tree, logits)
        return Verdict(self._last(nodes, logits, predictions), predictions, logits)

    def next_token(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """The target's own token (1,) after the committed text, and its processed (1, vocab)."""
        logits = self._processors.root(logits)
        return self._chosen(logits), logits

    def _predictions(self, tree: DraftTree, logits: mx.array) -> mx.array:
        return self._chosen(logits)

    def _chosen(self, logits: mx.array) -> mx.array:
        if self._sampler is None:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        return draw(self._sampler, normalized(logits))

    def _last(self, nodes: TreeNodes, logits: mx.array, predictions: mx.array) -> mx.array:
        return verify.follow(
            nodes.tokens, nodes.parents, nodes.ancestors, predictions, nodes.in_play
        )

    def draft(self, stream_logits: mx.array, width: int) -> tuple[mx.array, mx.array]:
        """(gamma, k) candidates of each stream for the next tree and their log-probabilities."""
        return best_tokens(stream_logits, width)

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        """Note what a step committed; tokens on the device may be unevaluated."""
        self._processors.commit(tokens)


class RejectionRule(VerifyRule):
    """``rejection``: drafts are drawn, and accepted by the ratio of target to drafter.

    Nothing may depend on the drawn tokens but their acceptance, see ``check_rule``. All nodes of a
    depth have the same children, which is no harm: one path is taken, so each draw is tested once.
    """

    def __init__(
        self,
        sampler: Sampling,
        processors: Sequence[LogitsProcessor] | None = None,
        prompt: Sequence[int] = (),
    ):
        super().__init__(sampler, processors, prompt)
        self._drafter: mx.array | None = None

    def _predictions(self, tree: DraftTree, logits: mx.array) -> mx.array:
        if len(tree) == 1:
            return self._chosen(logits)
        target = mx.exp(self._sampler.log_probs(logits))
        stream = np.minimum(
            tree.depths, self._drafter.shape[0] - 1
        )  # node's children's; leaves: any
        drafter = self._drafter[mx.array(stream)]
        return verify.recursive_rejection(target, drafter, mx.array(drafts_after(tree)))

    def draft(self, stream_logits: mx.array, width: int) -> tuple[mx.array, mx.array]:
        log_probs = self._sampler.log_probs(stream_logits)
        self._drafter = mx.exp(log_probs)
        return drawn_tokens(log_probs, width)


class TypicalRule(VerifyRule):
    """``typical``: Medusa's acceptance of what the target finds plausible enough. Lossy."""

    def _last(self, nodes: TreeNodes, logits: mx.array, predictions: mx.array) -> mx.array:
        log_probs = self._sampler.log_probs(logits)
        return verify.typical(
            nodes.tokens, nodes.parents, nodes.ancestors, log_probs, nodes.in_play
        )


def drafts_after(tree: DraftTree) -> np.ndarray:
    """(n, k) int32 tokens of each node's children in order, -1 where there are fewer than k."""
    parents = tree.parents[1:]
    first = np.searchsorted(parents, parents)  # breadth-first: siblings lie side by side
    rank = np.arange(len(parents)) - first
    drafts = np.full((len(tree), int(rank.max(initial=-1)) + 1), -1, np.int32)
    drafts[parents, rank] = tree.tokens[1:]
    return drafts


_RULES: dict[str, type[VerifyRule]] = {
    "greedy": VerifyRule,
    "sample": VerifyRule,
    "rejection": RejectionRule,
    "typical": TypicalRule,
}


def rule_name(name: VerifyName | None, sampler: Sampler | None) -> VerifyName:
    """The rule that is meant; where none is named, ``greedy`` without a temperature, or ``sample``.

    Raises:
        UserError: the rule does not go with the sampler.
    """
    certain = takes_arg_max(sampler)
    if name is None:
        return "greedy" if certain else "sample"
    if name not in _RULES:
        raise UserError(f"verify is {name!r}, expected one of {tuple(_RULES)}")
    if name == "greedy" and not certain:
        raise UserError(
            "verify is 'greedy', but a temperature or a sampler was given, "
            "expected neither, or another rule"
        )
    if name in ("rejection", "typical") and (certain or not isinstance(sampler, Sampling)):
        raise UserError(
            f"verify is {name!r}, which needs the target's probabilities at a temperature, "
            "expected a temp above 0 and, from Python, sampler=Sampling(temp=..)"
        )
    return name


def check_rule(name: VerifyName, settings: DraftSettings) -> None:
    """Whether a rule holds for the trees that ``settings`` make.

    Raises:
        UserError: ``rejection`` with a tree whose shape or pruning depends on the tokens drawn: its
            text would not be distributed as the target's.
    """
    if name != "rejection":
        return
    if settings.lookup and settings.speculation:
        raise UserError(
            "verify is 'rejection' and lookup is on, whose drafts are not drawn, expected a tree "
            "of the streams' own"
        )
    if not settings.speculates:
        return
    if settings.static_tree is not None:
        raise UserError(
            "verify is 'rejection' and the tree is static, whose ranks are those of sorted drafts, "
            "expected a full tree, given by tree_width alone"
        )
    for field in ("tree_size", "draft_threshold", "max_nodes", "prune_threshold"):
        value = getattr(settings, field)
        if value is not None:
            raise UserError(
                f"verify is 'rejection' and {field} is {value}, which lets the drawn tokens decide "
                "what is kept, expected a full tree, given by tree_width alone"
            )


def make_rule(
    name: VerifyName,
    sampler: Sampler | None,
    processors: Sequence[LogitsProcessor] | None,
    prompt: Sequence[int],
) -> VerifyRule:
    """The rule of one generation; ``name`` is from ``rule_name``."""
    return _RULES[name](sampler, processors, prompt)
