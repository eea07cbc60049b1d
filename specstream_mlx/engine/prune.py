"""Early-exit pruning: which drafted nodes go on to the MSA layers (section 3.3)."""

import math

import mlx.core as mx


def path_scores(
    logits: mx.array,
    tokens: mx.array,
    parents: mx.array,
    ancestors: mx.array,
    threshold: float | None = None,
    drafted: mx.array | None = None,
) -> mx.array:
    """Sum ``log softmax(logits of parent)[child]`` over each path: (sequences, n) float32.

    ``parents`` are the parents' rows of ``logits``. An edge of a probability below ``threshold``
    puts its whole subtree at -inf, as is padding, where ``drafted`` is false.
    """
    logits = logits.astype(mx.float32)
    normaliser = mx.logsumexp(logits, axis=-1)
    parents = mx.maximum(parents, 0)
    child = logits[mx.arange(len(logits))[:, None], parents, tokens]
    edges = mx.minimum(child - mx.take_along_axis(normaliser, parents, axis=1), 0.0)  # rounding
    if threshold:
        edges = mx.where(edges < math.log(threshold), -mx.inf, edges)
    edges = mx.where(mx.arange(tokens.shape[1]) == 0, 0.0, edges)
    if drafted is not None:
        edges = mx.where(drafted, edges, -mx.inf)
    return mx.where(ancestors, edges[:, None], 0.0).sum(axis=-1)


def keep_best(scores: mx.array, max_nodes: int) -> tuple[mx.array, mx.array]:
    """Keep the ``max_nodes`` best nodes, in breadth-first order; ties go to the lower index.

    A child never scores above its parent and comes after it, so the kept set is closed under
    ancestors. Also returns whether each is in play: a node at -inf may fill a place.
    """
    count = scores.shape[1]
    index = mx.arange(count)
    better = scores[:, None] > scores[..., None]
    tied_before = (scores[:, None] == scores[..., None]) & (index[None] < index[:, None])
    rank = (better | tied_before).sum(axis=-1)
    kept = mx.argsort(mx.where(rank < max_nodes, index, index + count), axis=-1)[:, :max_nodes]
    return kept.astype(mx.int32), mx.take_along_axis(scores, kept, axis=1) > -mx.inf


def rows_of_all(rows: mx.array, kept: mx.array | None, count: int) -> mx.array:
    """Spread the kept nodes' rows (m, vocab) to all ``count`` nodes; the others get any row."""
    if kept is None:
        return rows
    row = mx.zeros((count,), mx.int32)
    row[kept] = mx.arange(kept.size, dtype=mx.int32)
    return rows[row]
