"""``rejection``: the papers' rule (arXiv 2402.11131, Eq. 9), for drafts that are drawn."""

import mlx.core as mx
import numpy as np

from ..guess import Candidates, drawn_candidates
from ..plan import DraftTree
from .keyed import KeyedRule
from .rule import PathEnd


class RejectionRule(KeyedRule):
    """``rejection``: drafts are drawn, and accepted by the ratio of target to drafter.

    Draws and tests are keyed, so that a seed repeats a run, but the text depends on the drafts. All
    nodes of a depth have the same children; since one path is taken, each draw is tested once.
    """

    name = "rejection"
    needs_probabilities = True
    draws_drafts = True
    _drafter: mx.array | None = None

    def predictions(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        if len(tree) == 1:
            return self._token(logits)
        target = mx.exp(self._log_probs(logits, self._coins(tree, kept)))
        assert self._drafter is not None  # it drew this tree
        # The stream that a node's children were drawn from; for leaves any will do.
        stream = np.minimum(tree.depths, self._drafter.shape[0] - 1)
        drafter = self._drafter[mx.array(stream)]
        key = self._noise.key(self._position, "test")
        return recursive_rejection(target, drafter, mx.array(drafts_after(tree)), key)

    def rank_guesses(
        self, logits: mx.array, width: int, end: PathEnd, ids: mx.array | None, stream: int | None
    ) -> Candidates:
        if ids is not None:
            few, logits = logits, mx.full((len(logits), self._vocab_size), -mx.inf)
            logits[:, ids] = few
        places, count = end.places(len(logits), stream)
        coins = self._noise.coins(self._position, count)[places]
        log_probs = self._log_probs(logits, coins)
        self._drafter = mx.exp(log_probs)
        return drawn_candidates(log_probs, width, self._noise.key(self._position, "draft"))


def drafts_after(tree: DraftTree) -> np.ndarray:
    """Return each node's children's tokens in order, (n, k), -1 where there are fewer."""
    parents = tree.parents[1:]
    first = np.searchsorted(parents, parents)  # breadth-first: siblings lie side by side
    rank = np.arange(len(parents)) - first
    drafts = np.full((len(tree), int(rank.max(initial=-1)) + 1), -1, np.int32)
    drafts[parents, rank] = tree.tokens[1:]
    return drafts


def recursive_rejection(
    target: mx.array, drafter: mx.array, drafts: mx.array, key: mx.array | None = None
) -> mx.array:
    """Draw a token per row from the target's distribution, as often as possible a draft.

    Chen et al. 2023 (arXiv:2302.01318), Eq. 9; for several drafts, drawn without replacement, after
    each refusal p <- norm(max(p - q, 0)), and q drops the refused token and is renormalized (Jeon
    et al. 2024, arXiv:2402.14160). A draft that q cannot have drawn is passed over.
    """
    count = drafts.shape[1] + 1
    keys = [None] * count if key is None else list(mx.random.split(key, count))
    chosen = mx.full(drafts.shape[:1], -1, mx.int32)
    vocabulary = mx.arange(target.shape[-1])[None]
    for rank in range(drafts.shape[1]):
        draft = drafts[:, rank : rank + 1].astype(mx.int32)
        place = mx.maximum(draft, 0)
        q = mx.take_along_axis(drafter, place, axis=-1)
        p = mx.take_along_axis(target, place, axis=-1)
        tested = (draft >= 0) & (q > 0) & (chosen[:, None] < 0)
        accepted = tested & (mx.random.uniform(shape=q.shape, key=keys[rank]) * q < p)
        chosen = mx.where(accepted[:, 0], draft[:, 0], chosen)
        refused = tested & ~accepted
        target = mx.where(refused, _normalized(mx.maximum(target - drafter, 0.0), target), target)
        others = mx.where(vocabulary == draft, 0.0, drafter)
        drafter = mx.where(refused, _normalized(others, others), drafter)
    drawn = mx.random.categorical(mx.log(target), key=keys[-1]).astype(mx.int32)
    return mx.where(chosen < 0, drawn, chosen)


def _normalized(weights: mx.array, otherwise: mx.array) -> mx.array:
    """Scale rows to a sum of 1; rows of sum 0, as after rounding, become ``otherwise``'s."""
    mass = weights.sum(axis=-1, keepdims=True)
    return mx.where(mass > 0, weights / mx.maximum(mass, 1e-38), otherwise)
