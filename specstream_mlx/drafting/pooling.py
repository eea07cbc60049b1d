"""One probability for each token that several sources of drafts propose."""

import math
from collections.abc import Sequence

from ..engine.guess import Guesses, Path
from .best_first import Children
from .proposer import Proposer

# Where streams and lookup guess the same token; benchmarks/NOTES.md, "How should the two drafters'
# probabilities be joined?".
UNLISTED = 0.03  # of what the streams' candidates leave over, a token's that lookup alone proposes
COINCIDENCE = 0.05  # share of lookup's wrong tokens that the streams propose too


def pooled(streams: Guesses, others: Guesses) -> Guesses:
    """Merge the guesses of one stream and of lookup for the token after one node.

    By Bayes' rule with the streams' probabilities as the prior their odds multiply: lookup proposes
    the right token as often as it is right, a wrong one with probability ``COINCIDENCE``.
    """
    if not others:
        return streams
    shares = {token: math.exp(score) for token, score in streams}
    # What several sources together are all but sure of may sum to a little more than 1.
    left = max(0.0, 1 - sum(shares.values()))
    wrong = max(0.0, 1 - sum(math.exp(score) for _, score in others))
    weights = {token: share * wrong for token, share in shares.items()}
    for token, score in others:
        share = max(shares.get(token, 0.0), UNLISTED * left)
        weights[token] = share * math.exp(score) / COINCIDENCE
    total = sum(weights.values()) + left * wrong
    return [(token, math.log(weight / total)) for token, weight in weights.items() if weight]


def pool(proposers: Sequence[Proposer], streams: Children | None = None) -> Children:
    """Pool the guesses of a text's proposers and, where there are any, of its streams."""

    def children(path: Path) -> Guesses:
        guesses: Guesses = []
        for proposer in proposers:
            others = proposer.children(path)
            guesses = pooled(guesses, others) if guesses else others
        guessed = streams(path) if streams else []
        return pooled(guessed, guesses) if guessed else guesses

    return children
