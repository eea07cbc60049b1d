"""The verify rules that follow the target's own tokens, and what all rules have in common.

Every exact rule first gives each node one token, distributed as the target's next token there, and
then follows the children that carry those tokens (``follow``). A path is then as likely as under
plain decoding, whatever the tree, as long as a node's token is independent of which of its children
are there.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from ...drafting.settings import DraftSettings
from ...drafting.tree import DraftTree
from ..candidates import best_tokens
from ..rows import TreeNodes
from ..sampling import NodeProcessors, draw, normalized, takes_arg_max


class VerifyRule:
    """``greedy`` and ``sample``: follow the target's own arg-maxes or draws.

    A rule derives from this one and says otherwise how a node's token is found, which node is the
    last accepted one, or how streams draft.

    Args:
        sampler: of log-probabilities (rows, vocab), the rows independent of each other; ``None``:
            the arg-max.
        processors: see ``NodeProcessors``.
        prompt: token ids.
    """

    needs_probabilities = False
    """Whether the sampler must be a ``Sampling`` with a temperature."""

    def __init__(
        self,
        sampler: Sampler | None = None,
        processors: Sequence[LogitsProcessor] | None = None,
        prompt: Sequence[int] = (),
    ):
        self._sampler = None if takes_arg_max(sampler) else sampler
        self._processors = NodeProcessors(processors, prompt)

    @staticmethod
    def check(settings: DraftSettings) -> None:
        """Check that the rule's text is exact with trees of these settings.

        Raises:
            UserError: it would not be.
        """

    def verify(
        self, tree: DraftTree, nodes: TreeNodes, logits: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Judge a tree, or trees of one shape side by side where nothing is sampled or processed.

        Args:
            tree: all of it.
            nodes: those kept.
            logits: (.., m, vocab) of the kept ones.

        Returns:
            The last accepted node among the kept ones (..) int32; the target's token after each
            (.., m) int32, of which that of the last node is the correction or bonus token; and the
            processed logits.
        """
        logits = self._processors(tree, nodes.kept, logits)
        predictions = self._predictions(tree, logits)
        return self._last(nodes, logits, predictions), predictions, logits

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
        return follow(nodes.tokens, nodes.parents, nodes.ancestors, predictions, nodes.in_play)

    def draft(self, stream_logits: mx.array, width: int) -> tuple[mx.array, mx.array]:
        """(gamma, k) candidates of each stream for the next tree and their log-probabilities."""
        return best_tokens(stream_logits, width)

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        """Take note of the tokens that a step committed; they may be an unevaluated array."""
        self._processors.commit(tokens)


def follow(
    tokens: mx.array,
    parents: mx.array,
    ancestors: mx.array,
    predictions: mx.array,
    in_play: mx.array | None = None,
) -> mx.array:
    """Follow the target's own tokens from the root as far as drafted children match them.

    Siblings carry different tokens, so at most one path matches.

    Args:
        tokens: (n,) node tokens, or (.., n) of several trees of one shape.
        parents: (n,) parents' indices; the root's entry is not used.
        ancestors: (n, n) bool, ancestors-or-self.
        predictions: (.., n) the target's token after each node.
        in_play: (n,) bool, nodes that may be accepted; all where ``None``.

    Returns:
        (..) int32: the last accepted node, 0 where no draft was right. Its prediction is the
        correction or bonus token.
    """
    accepted = tokens == predictions[..., mx.maximum(parents, 0)]
    length = accepted_lengths(accepted, ancestors, in_play)
    return mx.argmax(length, axis=-1).astype(mx.int32)


def accepted_lengths(accepted: mx.array, ancestors: mx.array, in_play: mx.array | None) -> mx.array:
    """(.., n) how many nodes each path has, 0 where one of them is refused; the root never is.

    Args:
        accepted: (.., n) bool, by node.
        ancestors, in_play: as in ``follow``.
    """
    refused = ~accepted
    if in_play is not None:
        refused = refused | ~in_play
    refused = refused & (mx.arange(accepted.shape[-1]) != 0)
    path_refused = (ancestors & refused[..., None, :]).any(axis=-1)
    return mx.where(path_refused, 0, ancestors.sum(axis=-1))
