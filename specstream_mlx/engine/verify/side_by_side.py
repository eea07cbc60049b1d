"""Several sequences whose trees have one shape, each under a rule of its own."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from ..tree import DraftTree
from .rule import VerifyRule


class SideBySide(VerifyRule):
    """One rule for each sequence; all arrays have a leading axis for the sequences.

    Args:
        rules: of the sequences; what they verify is not pruned.
    """

    def __init__(self, rules: Sequence[VerifyRule]):
        super().__init__()
        self._rules = list(rules)

    def keep(self, sequences: Sequence[int]) -> None:
        """Drop the sequences that are not listed."""
        self._rules = [self._rules[number] for number in sequences]

    def processed(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        rows = zip(self._rules, tree.tokens, logits, strict=True)
        return mx.stack(
            [rule.processed(replace(tree, tokens=tokens), kept, own) for rule, tokens, own in rows]
        )

    def predictions(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        rows = zip(self._rules, logits, strict=True)
        return mx.stack([rule.predictions(tree, kept, own) for rule, own in rows])

    def draft(
        self,
        stream_logits: mx.array,
        width: int,
        tree: DraftTree,
        depth: mx.array,
        stream: int | None = None,
        ids: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        named = ids if ids is not None and ids.ndim == 2 else [ids] * len(self._rules)
        rows = zip(self._rules, stream_logits, depth, named, strict=True)
        drafts = [
            rule.draft(own, width, tree, last, stream, tokens) for rule, own, last, tokens in rows
        ]
        tokens, log_probs = zip(*drafts, strict=True)
        return mx.stack(tokens), mx.stack(log_probs)

    def commit(self, tokens: Sequence[Sequence[int]]) -> None:
        for rule, own in zip(self._rules, tokens, strict=True):
            rule.commit(own)
