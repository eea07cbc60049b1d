"""One tree of the streams' guesses and of lookup's, under one budget."""

import math

import numpy as np

from .best_first import Path, best_first
from .lookup import Lookup
from .tree import DraftTree

UNLISTED = 0.03
"""Share of what the streams leave to all other tokens that goes to the one that lookup names."""

COINCIDENCE = 0.05
"""How often lookup, when it is wrong, names just the token that the streams have in mind."""

DOUBT = 0.05
"""Share of the streams' probability that is taken from them where lookup speaks too: they are
often surer than they are right, which else no match could outweigh."""

Guesses = list[tuple[int, float]]
"""(token, log-probability) of guesses for one place; tokens differ."""


def hybrid_tree(
    root: int,
    candidates: np.ndarray,
    log_probs: np.ndarray,
    lookup: Lookup,
    lookup_size: int,
    size: int,
    threshold: float | None = None,
) -> DraftTree:
    """The ``size`` drafted nodes of highest joint probability, whoever guessed them.

    Streams guess each depth's token whatever came before, n-grams what follows a path. Both are
    asked behind every node, so lookup goes on where a stream has corrected a word, and streams
    branch off where a copy may end. Where both guess, ``pooled`` says how probable each token is.

    Args:
        root: the newest committed token, which ``lookup`` has accepted already.
        candidates: (gamma, k) the streams' token ids; gamma may be 0.
        log_probs: (gamma, k) their log-probabilities in nats.
        lookup: the n-grams.
        lookup_size: depth down to which they are asked.
        size: nodes besides the root.
        threshold: a joint probability; nodes below it are left out.
    """
    levels = [
        list(zip(tokens, scores, strict=True))
        for tokens, scores in zip(candidates.tolist(), log_probs.tolist(), strict=True)
    ]

    def children(path: Path) -> Guesses:
        found = lookup.children(path) if len(path) < lookup_size else []
        return pooled(levels[len(path)], found) if len(path) < len(levels) else found

    shape = best_first(children, size, threshold)
    shape.labels[0] = root
    return DraftTree(shape.labels, shape.parents, shape.depths, shape.log_probs)


def pooled(streams: Guesses, found: Guesses) -> Guesses:
    """What one depth's streams and lookup expect together behind one node.

    Streams and lookup know different things, one what the text means, the other what it repeats,
    so their odds multiply: what both guess is all but certain, and a long match that the streams
    think impossible is doubtful. By Bayes, with the streams' probabilities before lookup has
    spoken: it names the right token as often as it is right, and any wrong one by ``COINCIDENCE``.

    Args:
        streams: their best candidates; what is missing to 1 belongs to all other tokens.
        found: lookup's continuations.

    Returns:
        All tokens of both; their probabilities sum to at most 1.
    """
    if not found:
        return streams
    shares = {token: (1 - DOUBT) * math.exp(score) for token, score in streams}
    left = 1 - sum(shares.values())
    wrong = 1 - sum(math.exp(score) for _, score in found)
    weights = {token: share * wrong for token, share in shares.items()}
    for token, score in found:
        share = max(shares.get(token, 0.0), UNLISTED * left)
        weights[token] = share * math.exp(score) / COINCIDENCE
    total = sum(weights.values()) + left * wrong
    return [(token, math.log(weight / total)) for token, weight in weights.items() if weight]
