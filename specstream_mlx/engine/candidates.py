"""Candidates: the tokens that each stream proposes for the next tree."""

import mlx.core as mx

_GROUP = 64
_SHORT = 1024
"""Values that are sorted as quickly as partitioned."""


def best_tokens(logits: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """Find the likeliest tokens.

    Args:
        logits: (gamma, vocab).
        width: k.

    Returns:
        (gamma, k) int32 tokens and their log-probabilities in nats, best first.
    """
    logits = logits.astype(mx.float32)
    tokens = _largest(logits, width)
    chosen = mx.take_along_axis(logits, tokens, axis=-1)
    return tokens, chosen - mx.logsumexp(logits, axis=-1, keepdims=True)


def best_places(logits: mx.array, count: int) -> mx.array:
    """Return places (.., rows, m) int32 of the largest of (.., rows, n), in descending order."""
    return _largest(logits.flatten(0, -2), count).reshape(*logits.shape[:-1], count)


def named(tokens: mx.array, log_probs: mx.array, ids: mx.array | None) -> tuple[mx.array, mx.array]:
    """Turn candidates' places among the tokens ``ids`` into token ids.

    Args:
        tokens: (rows, k) places.
        log_probs: (rows, k) returned as they are.
        ids: (n,) token ids; ``None``: places are token ids.
    """
    return tokens if ids is None else ids[tokens], log_probs


def drawn_candidates(
    log_probs: mx.array, width: int, key: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Draw tokens without replacement, by the Gumbel top-k trick (Kool et al. 2019).

    Args:
        log_probs: (gamma, vocab).
        width: k. Where fewer tokens have a probability, any others follow these.
        key: random key of the draws; ``None``: mlx's random state.

    Returns:
        (gamma, k) tokens int32 and their log-probabilities, in the order in which they were drawn.
    """
    tokens = _largest(log_probs + mx.random.gumbel(log_probs.shape, key=key), width)
    return tokens, mx.take_along_axis(log_probs, tokens, axis=-1)


def _largest(values: mx.array, width: int) -> mx.array:
    """Return indices (rows, k) int32 of the largest of (rows, n), in descending order.

    Sorting all of a vocabulary is dear, on a GPU above all, where MLX has no cheaper partition. The
    k largest lie in the k groups with the largest maxima.
    """
    if width == 1:
        return mx.argmax(values, axis=-1, keepdims=True).astype(mx.int32)
    rows, count = values.shape
    if count < 2 * width * _GROUP:
        return _first(values, width)
    if count % _GROUP:
        # Values that fill up the last group must not tie with impossible tokens.
        values = mx.maximum(values, mx.finfo(values.dtype).min)
        values = mx.pad(values, [(0, 0), (0, -count % _GROUP)], constant_values=-mx.inf)
    values = values.reshape(rows, -1, _GROUP)
    groups = mx.argpartition(-values.max(axis=-1), kth=width - 1, axis=-1)[:, :width]
    members = mx.take_along_axis(values, groups[:, :, None], axis=1).reshape(rows, -1)
    place = _first(members, width)
    group = mx.take_along_axis(groups, place // _GROUP, axis=-1).astype(mx.int32)
    return group * _GROUP + place % _GROUP


def _first(values: mx.array, width: int) -> mx.array:
    """Compute ``_largest`` by a sort, or by a partition and a sort of its k values."""
    count = values.shape[-1]
    if count <= _SHORT:
        return mx.argsort(-values, axis=-1)[:, :width].astype(mx.int32)
    place = mx.argpartition(-values, kth=min(width, count) - 1, axis=-1)[:, :width]
    place = mx.sort(place, axis=-1)  # so that ties keep their order
    order = mx.argsort(-mx.take_along_axis(values, place, axis=-1), axis=-1)
    return mx.take_along_axis(place, order, axis=-1).astype(mx.int32)
