"""The target's distribution at temperature > 0: mlx_lm's filters and processors over tree nodes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import (
    LogitsProcessor,
    Sampler,
    apply_min_p,
    apply_top_k,
    apply_top_p,
    apply_xtc,
    categorical_sampling,
    greedy_sampler,
)

from ..config import UserError
from ..drafting.tree import DraftTree


@dataclass(frozen=True)
class Sampling:
    """A sampler like that of mlx_lm's ``make_sampler`` which also knows its probabilities.

    A sampler of mlx_lm's only draws, but ``rejection`` and ``typical`` need probabilities. The
    arguments and the order of the filters are ``make_sampler``'s, and so are the draws from the
    same random state, XTC apart: its coin is tossed here for each row, since the rows of one call
    are different tokens of one text.

    Attributes:
        temp: 0 takes the arg-max.
        top_p, min_p, min_tokens_to_keep, top_k, xtc_probability, xtc_threshold,
            xtc_special_tokens: see ``make_sampler``; the defaults filter nothing.

    Raises:
        UserError: a value out of range.
    """

    temp: float = 0.0
    top_p: float = 0.0
    min_p: float = 0.0
    min_tokens_to_keep: int = 1
    top_k: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_special_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temp < float("inf"):
            raise UserError(f"temp is {self.temp}, expected a number of at least 0")
        for name, most in (("top_p", 1), ("min_p", 1), ("xtc_probability", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise UserError(f"{name} is {getattr(self, name)}, expected a number from 0 to 1")
        if not 0 <= self.xtc_threshold <= 0.5:
            raise UserError(
                f"xtc_threshold is {self.xtc_threshold}, expected a number from 0 to 0.5"
            )
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}, expected an integer of at least 0")
        if self.min_tokens_to_keep < 1:
            raise UserError(
                f"min_tokens_to_keep is {self.min_tokens_to_keep}, "
                "expected an integer of at least 1"
            )

    def check(self, vocab_size: int) -> None:
        """Check that these settings fit a vocabulary.

        Raises:
            UserError: ``top_k`` or ``min_tokens_to_keep`` is not less than its size.
        """
        for name in ("top_k", "min_tokens_to_keep"):
            if getattr(self, name) >= vocab_size:
                raise UserError(
                    f"{name} is {getattr(self, name)}, expected less than the vocabulary's "
                    f"{vocab_size}"
                )

    def __call__(self, log_probs: mx.array) -> mx.array:
        """(rows,) tokens drawn from (rows, vocab) log-probabilities."""
        if self.temp == 0:
            return greedy_sampler(log_probs)
        return categorical_sampling(self._filtered(log_probs), self.temp)

    def log_probs(self, logits: mx.array) -> mx.array:
        """(rows, vocab) float32 log-probabilities of what ``__call__`` draws; needs a ``temp``."""
        scaled = self._filtered(normalized(logits)).astype(mx.float32) * (1.0 / self.temp)
        return normalized(scaled)

    def _filtered(self, log_probs: mx.array) -> mx.array:
        if 0 < self.top_p < 1:
            log_probs = apply_top_p(log_probs, self.top_p)
        if self.min_p:
            log_probs = apply_min_p(log_probs, self.min_p, self.min_tokens_to_keep)
        if self.xtc_probability:
            special = list(self.xtc_special_tokens)
            excluded = apply_xtc(log_probs, 1.0, self.xtc_threshold, special)
            coins = mx.random.uniform(shape=(*log_probs.shape[:-1], 1))
            log_probs = mx.where(coins > self.xtc_probability, log_probs, excluded)
        if self.top_k:
            log_probs = apply_top_k(log_probs, self.top_k)
        return log_probs


def normalized(logits: mx.array) -> mx.array:
    """Turn logits into log-probabilities over the last axis."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def takes_arg_max(sampler: Sampler | None) -> bool:
    """Whether a sampler is known to draw nothing; ``None`` is mlx_lm's default, the arg-max."""
    if isinstance(sampler, Sampling):
        return sampler.temp == 0
    return sampler is None or sampler is greedy_sampler


def draw(sampler: Sampler, log_probs: mx.array) -> mx.array:
    """(rows,) int32 tokens, independent of each other, from (rows, vocab) log-probabilities.

    One call of the sampler, but row by row where mlx_lm's has an XTC filter: that tosses one coin
    for a whole call, which would tie the tokens of a path together.
    """
    if _has_xtc(sampler):
        rows = [sampler(log_probs[row : row + 1]) for row in range(log_probs.shape[0])]
        return mx.concatenate(rows).astype(mx.int32)
    return sampler(log_probs).astype(mx.int32)


def _has_xtc(sampler: Sampler) -> bool:
    """Whether ``sampler`` comes from ``make_sampler`` with an ``xtc_probability``."""
    if not inspect.isfunction(sampler):
        return False
    methods = inspect.getclosurevars(sampler).nonlocals.get("sampling_methods", ())
    return any("apply_xtc" in method.__code__.co_names for method in methods)


class NodeProcessors:
    """mlx_lm's logits processors on a tree: each node's logits with the tokens up to that node.

    Args:
        processors: functions of (tokens, (1, vocab) logits). They must depend on nothing else: they
            see branches of a tree, of which most are never taken.
        prompt: the tokens committed so far.
    """

    def __init__(self, processors: Sequence[LogitsProcessor] | None, prompt: Sequence[int]):
        self._processors = tuple(processors or ())
        self._committed = mx.array(prompt) if self._processors else None

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        """Note the tokens that a step committed; the last of them is the next tree's root."""
        if self._processors:
            self._committed = mx.concatenate([self._committed, mx.array(tokens)])

    def root(self, logits: mx.array) -> mx.array:
        """The processed (1, vocab) logits after the committed tokens."""
        for processor in self._processors:
            logits = processor(self._committed, logits)
        return logits

    def __call__(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        """The processed (m, vocab) logits of the kept nodes.

        Args:
            tree: its root is the last committed token.
            kept: (m,) indices into the tree; ``None``: all nodes.
            logits: (m, vocab) of the kept nodes.
        """
        if not self._processors:
            return logits
        if kept is not None:
            # Which nodes were kept only the device knows, so all nodes are processed, those that
            # were not kept with logits that are none of theirs, and then left out.
            row = mx.zeros((len(tree),), mx.int32)
            row[kept] = mx.arange(kept.size, dtype=mx.int32)
            logits = logits[row]
        processed = []
        for node in range(len(tree)):
            drafted = mx.array(tree.tokens[tree.path(node)[1:]])
            tokens = mx.concatenate([self._committed, drafted]) if node else self._committed
            values = logits[node : node + 1]
            for processor in self._processors:
                values = processor(tokens, values)
            processed.append(values)
        logits = mx.concatenate(processed)
        return logits if kept is None else logits[kept]
