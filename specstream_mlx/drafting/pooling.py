"""One probability for each token that several sources of drafts propose."""

import math

from ..engine.guesses import Guesses
from .constants import COINCIDENCE, UNLISTED


def pooled(streams: Guesses, found: Guesses, doubt: float = 0.0) -> Guesses:
    """Merge the guesses of one stream and of lookup for the token after one node.

    Streams and lookup know different things, one what the text means, the other what it repeats,
    so their odds multiply: what both guess is all but certain, and a long match that the streams
    think impossible is doubtful. By Bayes, with the streams' probabilities before lookup has
    spoken: it names the right token as often as it is right, and any wrong one by ``COINCIDENCE``.

    Args:
        streams: their best candidates; what is missing to 1 belongs to all other tokens.
        found: lookup's continuations.
        doubt: share by which the streams' probabilities are lowered before.

    Returns:
        All tokens of both; their probabilities sum to at most 1.
    """
    if not found:
        return streams
    shares = {token: (1 - doubt) * math.exp(score) for token, score in streams}
    left = 1 - sum(shares.values())
    wrong = 1 - sum(math.exp(score) for _, score in found)
    weights = {token: share * wrong for token, share in shares.items()}
    for token, score in found:
        share = max(shares.get(token, 0.0), UNLISTED * left)
        weights[token] = share * math.exp(score) / COINCIDENCE
    total = sum(weights.values()) + left * wrong
    return [(token, math.log(weight / total)) for token, weight in weights.items() if weight]
