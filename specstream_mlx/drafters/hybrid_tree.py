"""One tree of the streams' guesses and of lookup's, under one budget."""

import numpy as np

from ..tree import DraftTree
from .best_first import Path, best_first
from .lookup import Lookup


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
    branch off where a copy may end. Where both guess the same token, the surer one counts.

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

    def children(path: Path) -> list[tuple[int, float]]:
        streams = levels[len(path)] if len(path) < len(levels) else []
        if len(path) >= lookup_size:
            return streams
        scores = dict(streams)
        for token, score in lookup.children(path):
            scores[token] = max(score, scores.get(token, score))
        return list(scores.items())

    shape = best_first(children, size, threshold)
    shape.labels[0] = root
    return DraftTree(shape.labels, shape.parents, shape.depths, shape.log_probs)
