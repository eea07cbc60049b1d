"""Trees of fixed settings against brute force, and the text that they must not change."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from trees import arrays, assert_well_formed, fixed_trees, random_candidates

from specstream_mlx import UserError
from specstream_mlx.drafting.calibration import StreamAverages, pooled
from specstream_mlx.drafting.ngram import Lookup
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.guess import StreamGuesses
from specstream_mlx.stream_config import StreamConfig

NO_STREAMS = np.empty((0, 0), np.int32), np.empty((0, 0), np.float32)


def every_path(candidates, log_probs, lookup, lookup_size):
    """All paths that streams or lookup guess, and their joint log-probabilities.

    Beside lookup the streams' are corrected; nothing has been judged yet.
    """
    averages, (found, level) = StreamAverages(), ({}, {(): 0.0})
    averages.take(StreamGuesses(candidates, log_probs))
    for depth in range(max(len(candidates), lookup_size)):
        below = {}
        for path, score in level.items():
            known = lookup.children(path) if depth < lookup_size else []
            if depth < len(candidates):
                row = zip(candidates[depth].tolist(), log_probs[depth].tolist(), strict=True)
                known = pooled(averages.after(path) if lookup_size else list(row), known)
            below |= {(*path, token): score + log_prob for token, log_prob in known}
        found |= below
        level = below
    return found


@pytest.mark.parametrize("looks_up", [False, True])
@pytest.mark.parametrize("exact_ties", [False, True])
@pytest.mark.parametrize(
    ("gamma", "width", "used"), [(0, 0, None), (1, 4, None), (3, 2, 2), (3, 1, None)]
)
def test_the_best_paths_of_all_in_one_budget(gamma, width, used, exact_ties, looks_up):
    """The first ``used`` streams draft; the full tree has as many nodes as its settings say."""
    rng = np.random.default_rng(gamma)
    for seed in range(5):
        read, written = (rng.integers(0, 8, 40).tolist() for _ in range(2))
        ngram, depth = rng.integers(1, 5, 2).tolist()
        lookup = Lookup(Material(read), ngram)
        lookup.accept(written)
        tokens, scores = NO_STREAMS
        if gamma:
            tokens = np.array([rng.choice(8, width, replace=False) for _ in range(gamma)], np.int32)
            _, scores = random_candidates(gamma, width, seed, exact_ties)
            scores = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True) + 0.1)
        every = every_path(tokens[:used], scores[:used], lookup, depth if looks_up else 0)
        best = sorted(every.values(), reverse=True)
        sizes = (1, 3, 8, 30) if looks_up else (1, 3, 8, 30, None)  # None: a full tree
        for size, threshold in itertools.product(sizes, (None, 0.0, 0.05, 0.3)):
            settings = DraftSettings(
                lookup=looks_up,
                lookup_size=depth,
                lookup_ngram=ngram,
                tree_size=size,
                tree_width=max(width, 1),
                num_streams=used,
                draft_threshold=threshold,
            )
            proposers = [make(Material(read)) for make in settings.makers]
            drafter = fixed_trees(settings, proposers)
            drafter.accept(None, written, None)
            tree = drafter.grow(7, StreamGuesses(tokens, scores))
            assert_well_formed(tree)
            assert tree.tokens[0] == 7
            paths = [tuple(tree.tokens[tree.path(n)[1:]].tolist()) for n in range(1, len(tree))]
            assert tree.log_probs[1:] == pytest.approx([every[path] for path in paths])
            likely = [s for s in best if not threshold or s >= math.log(threshold)]
            assert sorted(tree.log_probs[1:], reverse=True) == pytest.approx(likely[:size])
            if size is None and not threshold:
                assert settings.most_nodes(used or gamma) == len(tree) - 1
            again = drafter.grow(7, StreamGuesses(tokens, scores))
            assert all((a == b).all() for a, b in zip(*map(arrays, (tree, again)), strict=True))


def test_streams_that_are_never_right_soon_leave_the_nodes_to_lookup():
    text, trees = [1, 2, 3, 4, 5, 6] * 6, []
    sure = StreamGuesses(np.full((2, 1), 9, np.int32), np.full((2, 1), math.log(0.9)))
    drafter = fixed_trees(DraftSettings(lookup=True, tree_size=2), [Lookup(Material(text))])
    for root, token in zip([6, *text], text, strict=False):
        trees.append(drafter.grow(root, sure).tokens[1:].tolist())
        drafter.accept(None, [token], None)
    assert 9 in trees[0]
    assert not any(9 in tree for tree in trees[5:])


LOSSLESS = StreamConfig(
    mode="lossless", hidden_size=8, num_hidden_layers=4, num_msa_layers=2, num_streams=4
)
SHARED, NO_PRUNER = replace(LOSSLESS, mode="shared"), replace(LOSSLESS, pruner_rank=0)


@pytest.mark.parametrize(
    ("fields", "streams", "sentence"),
    [
        ({"stream_nodes": 2, "max_nodes": 5}, LOSSLESS, "stream_nodes and max_nodes were both"),
        ({"stream_nodes": 2}, SHARED, "stream_nodes needs an adapter in lossless mode"),
        ({"max_nodes": 3}, NO_PRUNER, "need a pruner, the adapter has none"),
        ({"stream_nodes": 2, "num_streams": 0, "lookup": True}, LOSSLESS, "but no streams run"),
    ],
)
def test_settings_that_do_not_fit(fields, streams, sentence):
    with pytest.raises(UserError, match=sentence):
        DraftSettings(**fields).check(97, streams)
