"""What is true of every drafter: shapes that settings describe, and joint log-probabilities."""

import numpy as np
import pytest
from trees import grow, random_candidates

from specstream_mlx.drafting.hybrid import DOUBT
from specstream_mlx.drafting.lookup import Lookup
from specstream_mlx.drafting.pooling import pooled
from specstream_mlx.drafting.settings import LIKELY_DRAFTS, DraftSettings, draft_settings
from specstream_mlx.drafting.static_tree import StaticTree

TABLE = StaticTree(((0.5, 0.2), (0.4, 0.1), (0.3, 0.2)), 6)
GROWN = {
    "chain": DraftSettings(tree_width=1, tree_size=None),
    "full": DraftSettings(tree_width=2, tree_size=None),
    "best-first": DraftSettings(tree_size=8),
    "static": DraftSettings(static_tree=TABLE, tree_size=6),
    "lookup": DraftSettings(tree_size=8, lookup=True),
}


def guesses(seed=0, gamma=3, width=4, vocab_size=20):
    """Candidates and log-probabilities of random streams."""
    logits = np.random.default_rng(seed).normal(0, 2, (gamma, vocab_size))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    best = np.argsort(-log_probs, axis=1)[:, :width].astype(np.int32)
    return best, np.take_along_axis(log_probs, best, axis=1)


@pytest.mark.parametrize("name", GROWN)
def test_every_grower_hands_out_joint_log_probabilities(name):
    settings = GROWN[name]
    for seed in range(5):
        candidates, log_probs = guesses(seed)
        tree = grow(settings, 3, candidates, log_probs, [3, 4, 5, 3, 4, 6, 3])
        assert len(tree) > 2
        ngrams = Lookup([3, 4, 5, 3, 4, 6, 3], settings.lookup_ngram)
        for node in range(len(tree)):
            assert tree.log_probs[node] == pytest.approx(joint(tree, node, name, seed, ngrams))
        shallow = tree.to_depth(1)
        assert len(shallow.log_probs) == len(shallow)


def joint(tree, node, name, seed, ngrams):
    """The sum over the edges of a path of what its drafter said to each token."""
    candidates, log_probs = guesses(seed)
    tokens, total = tree.tokens[tree.path(node)].tolist(), 0.0
    for depth, token in enumerate(tokens[1:]):
        scores = {}
        if depth < len(candidates):
            rates = TABLE.acceptance[depth] if name == "static" else np.exp(log_probs[depth])
            scores = dict(zip(candidates[depth].tolist(), np.log(rates).tolist(), strict=False))
        if name == "lookup":
            found = ngrams.children(tokens[1 : depth + 1])
            scores = dict(pooled(list(scores.items()), found, DOUBT) if scores else found)
        total += scores[token]
    return total


@pytest.mark.parametrize(
    ("settings", "nodes", "depth"),
    [
        ({"tree_size": None, "tree_width": 1}, 5, 4),
        ({"tree_size": None, "tree_width": 2}, 31, 4),
        ({"tree_size": None, "tree_width": 3, "num_streams": 2}, 13, 2),
        ({"tree_size": 6, "tree_width": 3, "num_streams": 1}, 4, 1),
        ({"tree_size": 6, "tree_width": 3}, 7, None),
        ({"tree_size": None, "tree_width": 2, "draft_threshold": 0.0}, 31, 4),
        ({"tree_size": 6, "tree_width": 3, "draft_threshold": 0.9999}, 1, 0),
    ],
)
def test_settings_grow_the_tree_they_describe(settings, nodes, depth):
    candidates, log_probs = random_candidates(4, 3, seed=1)
    tree = grow(DraftSettings(**settings), 7, candidates, log_probs)
    assert len(tree) == nodes
    assert depth is None or tree.depths.max() == depth


def test_unlikely_drafts_are_left_out_unless_a_shape_is_given():
    assert draft_settings() == LIKELY_DRAFTS
    assert LIKELY_DRAFTS.draft_threshold is not None
    assert draft_settings(num_streams=2).draft_threshold == LIKELY_DRAFTS.draft_threshold
    assert draft_settings(tree_width=2) == DraftSettings(tree_width=2)
    assert draft_settings(tree_size=5) == DraftSettings(tree_size=5)
    assert draft_settings(tree_size=5, draft_threshold=0.4).draft_threshold == 0.4
