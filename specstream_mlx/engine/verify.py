"""Verify rules: which path of a draft tree the target accepts.

Every exact rule first gives each node one token, distributed as the target's next token there, and
then follows the children that carry those tokens (``follow``). ``greedy`` takes arg-maxes,
``sample`` draws, and ``rejection`` draws through the drafts (``recursive_rejection``). A path is
then as likely as under plain decoding, whatever the tree, as long as a node's token is independent
of which of its children are there. ``typical`` accepts plausible drafts instead, and is not exact.
"""

import mlx.core as mx

TYPICAL_PROBABILITY = 0.09
"""Medusa's epsilon: a draft that the target holds for likelier is always typical."""
TYPICAL_FACTOR = 0.3
"""Medusa's delta: how far below exp(-entropy) a draft may be."""


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
    length = _accepted_lengths(accepted, ancestors, in_play)
    return mx.argmax(length, axis=-1).astype(mx.int32)


def recursive_rejection(target: mx.array, drafter: mx.array, drafts: mx.array) -> mx.array:
    """One token per row, distributed as the target's, that is a draft as often as can be.

    Chen et al. 2023 (arXiv:2302.01318), Eq. 9, for one draft; for several, drawn without
    replacement, after each refusal p <- norm(max(p - q, 0)), and q drops the refused token and is
    renormalized (Jeon et al. 2024, arXiv:2402.14160). A draft that q cannot have drawn is passed
    over, which happens where more are asked for than q has tokens.

    Args:
        target: (rows, vocab) probabilities p.
        drafter: (rows, vocab) probabilities q that the drafts were drawn from.
        drafts: (rows, k) tokens in the order in which they were drawn, -1 for none.

    Returns:
        (rows,) int32.
    """
    chosen = mx.full(drafts.shape[:1], -1, mx.int32)
    vocabulary = mx.arange(target.shape[-1])[None]
    for rank in range(drafts.shape[1]):
        draft = drafts[:, rank : rank + 1].astype(mx.int32)
        place = mx.maximum(draft, 0)
        q = mx.take_along_axis(drafter, place, axis=-1)
        p = mx.take_along_axis(target, place, axis=-1)
        tested = (draft >= 0) & (q > 0) & (chosen[:, None] < 0)
        accepted = tested & (mx.random.uniform(shape=q.shape) * q < p)
        chosen = mx.where(accepted[:, 0], draft[:, 0], chosen)
        refused = tested & ~accepted
        target = mx.where(refused, _normalized(mx.maximum(target - drafter, 0.0), target), target)
        others = mx.where(vocabulary == draft, 0.0, drafter)
        drafter = mx.where(refused, _normalized(others, others), drafter)
    drawn = mx.random.categorical(mx.log(target)).astype(mx.int32)
    return mx.where(chosen < 0, drawn, chosen)


def typical(
    tokens: mx.array,
    parents: mx.array,
    ancestors: mx.array,
    log_probs: mx.array,
    in_play: mx.array | None = None,
) -> mx.array:
    """Medusa's typical acceptance (arXiv:2401.10774, section 2.3.1). Lossy.

    A draft x is accepted where p(x) > min(epsilon, delta * exp(-H(p))); the longest path wins, of
    several the likeliest.

    Args:
        tokens, parents, ancestors, in_play: as in ``follow``.
        log_probs: (n, vocab) of the target's processed distribution.

    Returns:
        Scalar int32: the last accepted node.
    """
    log_probs = log_probs.astype(mx.float32)
    parents = mx.maximum(parents, 0)
    terms = mx.where(log_probs > -mx.inf, mx.exp(log_probs) * log_probs, 0.0)
    threshold = mx.minimum(TYPICAL_PROBABILITY, TYPICAL_FACTOR * mx.exp(terms.sum(axis=-1)))
    edges = log_probs[parents, tokens]
    accepted = mx.exp(edges) > threshold[parents]
    length = _accepted_lengths(accepted, ancestors, in_play)
    edges = mx.where(mx.arange(tokens.size) == 0, 0.0, edges)
    likelihood = mx.where(ancestors, edges[None], 0.0).sum(axis=1)
    longest = length == length.max()
    return mx.argmax(mx.where(longest, likelihood, -mx.inf), axis=0).astype(mx.int32)


def _accepted_lengths(
    accepted: mx.array, ancestors: mx.array, in_play: mx.array | None
) -> mx.array:
    """(.., n) lengths of the nodes' paths, 0 where one is refused on the way; the root never is."""
    refused = ~accepted
    if in_play is not None:
        refused = refused | ~in_play
    refused = refused & (mx.arange(accepted.shape[-1]) != 0)
    path_refused = (ancestors & refused[..., None, :]).any(axis=-1)
    return mx.where(path_refused, 0, ancestors.sum(axis=-1))


def _normalized(weights: mx.array, otherwise: mx.array) -> mx.array:
    """Rows of sum 1; ``otherwise`` where nothing is left, as after rounding."""
    mass = weights.sum(axis=-1, keepdims=True)
    return mx.where(mass > 0, weights / mx.maximum(mass, 1e-38), otherwise)
