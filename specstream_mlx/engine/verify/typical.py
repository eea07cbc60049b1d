"""``typical``: drafts that the target finds plausible are accepted. Lossy."""

import mlx.core as mx

from ..plan import DraftTree
from ..rows import TreeNodes
from .keyed import KeyedRule
from .rule import VerifyRule, accepted_lengths

TYPICAL_PROBABILITY = 0.09  # Medusa's epsilon: a draft of higher probability is always typical
TYPICAL_FACTOR = 0.3  # Medusa's delta: so is one of more than this times exp(-entropy)


class TypicalRule(KeyedRule):
    """``typical``: correction and bonus tokens are keyed, drafts are the likeliest ones."""

    name = "typical"
    needs_probabilities = True
    rank_guesses = VerifyRule.rank_guesses  # without the noise of ``keyed``

    def _last(
        self, tree: DraftTree, nodes: TreeNodes, logits: mx.array, predictions: mx.array
    ) -> mx.array:
        log_probs = self._log_probs(logits, self._coins(tree, nodes.kept))
        return typical(nodes.tokens, nodes.parents, nodes.ancestors, log_probs, nodes.in_play)


def typical(
    tokens: mx.array,
    parents: mx.array,
    ancestors: mx.array,
    log_probs: mx.array,
    in_play: mx.array | None = None,
) -> mx.array:
    """Accept drafts x where p(x) > min(epsilon, delta * exp(-H(p))): arXiv:2401.10774, 2.3.1.

    The longest path wins, of several the likeliest.
    """
    log_probs = log_probs.astype(mx.float32)
    parents = mx.maximum(parents, 0)
    terms = mx.where(log_probs > -mx.inf, mx.exp(log_probs) * log_probs, 0.0)
    threshold = mx.minimum(TYPICAL_PROBABILITY, TYPICAL_FACTOR * mx.exp(terms.sum(axis=-1)))
    edges = log_probs[parents, tokens]
    accepted = mx.exp(edges) > threshold[parents]
    length = accepted_lengths(accepted, ancestors, in_play)
    edges = mx.where(mx.arange(tokens.size) == 0, 0.0, edges)
    likelihood = mx.where(ancestors, edges[None], 0.0).sum(axis=1)
    longest = length == length.max()  # of several the likeliest path wins
    return mx.argmax(mx.where(longest, likelihood, -mx.inf), axis=0).astype(mx.int32)
