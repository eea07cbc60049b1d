"""Verify rules: which path of a draft tree the target accepts. Here: ``greedy``."""

import mlx.core as mx


def greedy(
    tokens: mx.array,
    parents: mx.array,
    ancestors: mx.array,
    predictions: mx.array,
    in_play: mx.array | None = None,
) -> mx.array:
    """Follow the target's arg-max from the root as far as drafted children match it.

    Siblings carry different tokens, so at most one path matches.

    Args:
        tokens: (n,) node tokens.
        parents: (n,) parents' indices; the root's entry is not used.
        ancestors: (n, n) bool, ancestors-or-self.
        predictions: (n,) the target's arg-max after each node.
        in_play: (n,) bool, nodes that may be accepted; all where ``None``.

    Returns:
        Scalar int32: the last accepted node, 0 where no draft was right. Its prediction is the
        correction or bonus token.
    """
    index = mx.arange(tokens.size)
    refused = tokens != predictions[mx.maximum(parents, 0)]
    if in_play is not None:
        refused = refused | ~in_play
    refused = refused & (index != 0)
    path_refused = (ancestors & refused[None]).any(axis=1)
    length = mx.where(path_refused, 0, ancestors.sum(axis=1))
    return mx.argmax(length).astype(mx.int32)
