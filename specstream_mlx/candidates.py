"""What the streams propose for each depth of the next tree."""

import mlx.core as mx


def best_tokens(logits: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """The likeliest tokens.

    Args:
        logits: (gamma, vocab).
        width: k.

    Returns:
        (gamma, k) tokens int32 and their log-probabilities, best first.
    """
    logits = logits.astype(mx.float32)
    if width == 1:
        tokens = mx.argmax(logits, axis=-1, keepdims=True)
    else:
        tokens = mx.argpartition(-logits, kth=width - 1, axis=-1)[:, :width]
    chosen = mx.take_along_axis(logits, tokens, axis=-1)
    if width > 1:
        order = mx.argsort(-chosen, axis=-1)
        tokens = mx.take_along_axis(tokens, order, axis=-1)
        chosen = mx.take_along_axis(chosen, order, axis=-1)
    return tokens.astype(mx.int32), chosen - mx.logsumexp(logits, axis=-1, keepdims=True)


def drawn_tokens(log_probs: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """Tokens drawn without replacement, by the Gumbel top-k trick (Kool et al. 2019).

    Args:
        log_probs: (gamma, vocab).
        width: k. Where fewer tokens have a probability, any others follow these.

    Returns:
        (gamma, k) tokens int32 and their log-probabilities, in the order in which they were drawn.
    """
    perturbed = log_probs + mx.random.gumbel(log_probs.shape)
    tokens = mx.argsort(-perturbed, axis=-1)[:, :width]
    return tokens.astype(mx.int32), mx.take_along_axis(log_probs, tokens, axis=-1)
