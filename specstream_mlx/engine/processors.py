"""mlx_lm's logits processors on the nodes of a tree."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor

from ..config import UserError, shown
from .prune import rows_of_all
from .tree import DraftTree


class NodeProcessors:
    """mlx_lm's logits processors on a tree: each node's logits with the tokens up to that node.

    Args:
        processors: functions of (tokens, (1, vocab) logits). They must depend on nothing else: they
            see branches of a tree, of which most are never taken.
        prompt: the tokens committed so far.
    """

    def __init__(self, processors: Sequence[LogitsProcessor] | None, prompt: Sequence[int]):
        self._processors = tuple(processors or ())
        self._committed = mx.array(list(prompt) if self._processors else [], mx.int32)

    def __bool__(self) -> bool:
        """Return True if there are any processors."""
        return bool(self._processors)

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        """Note the tokens that a step committed; the last of them is the next tree's root."""
        if self._processors:
            new = tokens if isinstance(tokens, mx.array) else mx.array(list(tokens))
            self._committed = mx.concatenate([self._committed, new])

    def root(self, logits: mx.array) -> mx.array:
        """Process the logits (1, vocab) after the committed tokens."""
        return self._applied(self._committed, logits)

    def __call__(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        """Process the logits of the kept nodes."""
        if not self._processors:
            return logits
        logits = rows_of_all(logits, kept, len(tree))
        processed = []
        for node in range(len(tree)):
            drafted = mx.array(tree.tokens[tree.path(node)[1:]])
            tokens = mx.concatenate([self._committed, drafted]) if node else self._committed
            processed.append(self._applied(tokens, logits[node : node + 1]))
        logits = mx.concatenate(processed)
        return logits if kept is None else logits[kept]

    def _applied(self, tokens: mx.array, logits: mx.array) -> mx.array:
        shape = logits.shape
        for processor in self._processors:
            logits = processor(tokens, logits)
            if not isinstance(logits, mx.array) or logits.shape != shape:
                found = logits.shape if isinstance(logits, mx.array) else shown(logits)
                raise UserError(
                    f"a logits processor returned {found}, expected an array of the shape {shape}"
                )
        return logits
