"""Guesses of streams that know the token before: one stream after the other, on the device."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

Rank = Callable[[mx.array, int], tuple[mx.array, mx.array]]
"""Function of logits (.., paths, vocab) and of a stream's number, from 0 on, that returns the
candidates (.., paths, k) and their log-probabilities."""

Logits = Callable[[int, mx.array], mx.array]
"""Function of a stream's number and of the tokens before (.., paths) that returns its logits
(.., paths, vocab)."""


def guess(
    logits: Logits, rank: Rank, token: mx.array, expansion: Sequence[np.ndarray | None], width: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Let each stream guess behind some of the paths that the streams before it have guessed.

    Args:
        logits: of the streams.
        rank: of the verify rule.
        token: (..) the target's own token, which stream 0 guesses behind.
        expansion: see ``drafting.expansion``; one entry less than there are streams.
        width: how many paths are expanded where their probabilities decide.

    Returns:
        (.., gamma, paths, k) tokens and their log-probabilities, and (.., gamma, paths) parents:
        the number of the guess of the stream before that each path ends with, -1 where there is
        no such path.
    """
    before, joint, parents = token[..., None], None, None
    found: list[tuple[mx.array, mx.array, mx.array]] = []
    for stream in range(len(expansion) + 1):
        tokens, log_probs = rank(logits(stream, before), stream)
        if parents is None:
            parents = mx.full(before.shape, -1, mx.int32)
        found.append((tokens, log_probs, parents))
        if stream == len(expansion):
            break
        scores = log_probs if joint is None else joint[..., None] + log_probs
        scores, flat = scores.flatten(-2), tokens.flatten(-2)
        chosen = expansion[stream]
        if chosen is None:
            parents = mx.argsort(-scores, axis=-1)[..., :width].astype(mx.int32)
        else:
            shape = *flat.shape[:-1], len(chosen)
            parents = mx.broadcast_to(mx.array(chosen, mx.int32), shape)
        before = mx.take_along_axis(flat, parents, axis=-1)
        joint = mx.take_along_axis(scores, parents, axis=-1)
    paths = max(parents.shape[-1] for *_, parents in found)
    columns = zip(*(_filled(*level, paths) for level in found), strict=True)
    tokens, log_probs, parents = columns
    return mx.stack(tokens, -3), mx.stack(log_probs, -3), mx.stack(parents, -2)


def _filled(
    tokens: mx.array, log_probs: mx.array, parents: mx.array, paths: int
) -> tuple[mx.array, mx.array, mx.array]:
    """The same with so many paths; those that are none have the parent -1."""
    missing = paths - parents.shape[-1]
    if not missing:
        return tokens, log_probs, parents
    front = [(0, 0)] * (parents.ndim - 1)
    return (
        mx.pad(tokens, [*front, (0, missing), (0, 0)]),
        mx.pad(log_probs, [*front, (0, missing), (0, 0)]),
        mx.pad(parents, [*front, (0, missing)], constant_values=-1),
    )
