"""Trees of streams and lookup: validity, best nodes of all, and the output of every mode."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from architecture_models import pair
from kv_cases import CROSSING, arguments, plain, prompt_of
from random_models import (
    PROMPT,
    Oracle,
    assert_lossless,
    assert_same_rows,
    assert_same_tokens,
    plain_caches,
    plain_tokens,
    sequel,
    speculative_model,
    tokens_of,
)
from trees import arrays, assert_well_formed, best_first_tree, grow, random_candidates

from specstream_mlx.drafting import drafter
from specstream_mlx.drafting.drafter import make_drafter
from specstream_mlx.drafting.hybrid import DOUBT
from specstream_mlx.drafting.lookup import Lookup
from specstream_mlx.drafting.pooling import pooled
from specstream_mlx.drafting.settings import LIKELY_DRAFTS, DraftSettings, draft_settings
from specstream_mlx.engine.guesses import StreamGuesses

NO_STREAMS = np.empty((0, 0), np.int32), np.empty((0, 0), np.float32)


def path_tokens(tree, node):
    return tuple(tree.tokens[tree.path(node)[1:]].tolist())


def random_texts(rng, vocab_size=8, length=40):
    """What lookup has read, what it has learned from, and its longest n-gram."""
    read, written = (rng.integers(0, vocab_size, length).tolist() for _ in range(2))
    return read, written, int(rng.integers(1, 5))


def every_path(candidates, log_probs, lookup, lookup_size):
    """All paths that streams or lookup guess, and their joint probabilities."""
    found, level = {}, {(): 0.0}
    for depth in range(max(len(candidates), lookup_size)):
        below = {}
        for path, score in level.items():
            known = lookup.children(path) if depth < lookup_size else []
            if depth < len(candidates):
                row = zip(candidates[depth].tolist(), log_probs[depth].tolist(), strict=True)
                known = pooled(list(row), known, DOUBT)
            below |= {(*path, token): score + log_prob for token, log_prob in known}
        found |= below
        level = below
    return found


def probabilities(guesses):
    return {token: math.exp(score) for token, score in guesses}


def guesses(values):
    return [(token, math.log(value)) for token, value in values.items()]


def test_pooled_probabilities_sum_to_at_most_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        streams = dict(zip(range(4), rng.dirichlet(np.full(5, 0.3))[:4] + 1e-9, strict=True))
        first, second, _ = rng.dirichlet([1, 1, 1])
        token = int(rng.integers(0, 7))
        found = {token: first, token + 1: second}
        for known in (found, {}):
            together = probabilities(pooled(guesses(streams), guesses(known)))
            assert set(together) == {*streams, *known}
            assert sum(together.values()) <= 1 + 1e-6
            assert all(value >= 0 for value in together.values())


def test_streams_alone_are_unchanged():
    streams = guesses({3: 0.5, 4: 0.2})
    assert pooled(streams, []) == streams


def test_agreement_is_surer_than_either():
    together = probabilities(pooled(guesses({3: 0.6, 4: 0.2}), guesses({3: 0.7})))
    assert together[3] > 0.9
    assert together[4] < 0.2


def test_the_surer_one_prevails_where_they_differ():
    sure, unsure, long, short = {3: 0.98}, {3: 0.3, 4: 0.1}, {9: 0.8}, {9: 0.2}
    streams_prevail = probabilities(pooled(guesses(sure), guesses(short)))
    assert streams_prevail[3] > 0.9
    assert streams_prevail[9] < 0.05
    lookup_prevails = probabilities(pooled(guesses(unsure), guesses(long)))
    assert lookup_prevails[9] > 2 * lookup_prevails[3]
    doubted = probabilities(pooled(guesses(sure), guesses(long)))
    assert doubted[3] > doubted[9]


def test_lookup_decides_among_the_candidates_of_the_streams():
    together = probabilities(pooled(guesses({3: 0.5, 4: 0.3}), guesses({4: 0.6}), DOUBT))
    assert together[4] > 3 * together[3]
    # By hand, of 0.95 * 0.3 * 0.6 / 0.05 and 0.95 * 0.5 * 0.4 and 0.24 * 0.4 for all other tokens.
    assert together[4] == pytest.approx(3.42 / (3.42 + 0.19 + 0.096))
    assert together[3] == pytest.approx(0.19 / (3.42 + 0.19 + 0.096))


def test_lookup_may_name_a_token_where_the_streams_leave_none():
    """As calibrated tables may: they sum to 1, and give no chance to some candidates."""
    streams = [(3, 0.0), (4, -math.inf)]
    assert set(dict(pooled(streams, guesses({4: 0.5}), DOUBT))) == {3, 4}
    assert set(dict(pooled(streams, guesses({5: 0.5}), DOUBT))) == {3, 5}


@pytest.mark.parametrize(("gamma", "width"), [(0, 0), (1, 3), (2, 2), (3, 1)])
def test_the_best_paths_of_all_in_one_budget(gamma, width):
    rng = np.random.default_rng(gamma)
    for seed in range(10):
        (read, written, ngram), depth = random_texts(rng), int(rng.integers(1, 5))
        lookup = Lookup(read, ngram)
        lookup.accept(written)
        tokens, scores = NO_STREAMS
        if gamma:
            tokens = np.array([rng.choice(8, width, replace=False) for _ in range(gamma)], np.int32)
            _, scores = random_candidates(gamma, width, seed)
        every = every_path(tokens, scores, lookup, depth)
        best = sorted(every.values(), reverse=True)
        for size, threshold in itertools.product((1, 3, 8, 30), (None, 0.05, 0.3)):
            settings = DraftSettings(
                lookup=True,
                lookup_size=depth,
                lookup_ngram=ngram,
                tree_size=size,
                draft_threshold=threshold,
            )
            drafter = make_drafter(settings, True, read)
            drafter.accept(written)
            tree = drafter.grow(7, StreamGuesses(tokens, scores))
            assert_well_formed(tree)
            assert tree.tokens[0] == 7
            likely = [s for s in best if threshold is None or s >= math.log(threshold)]
            found = [every[path_tokens(tree, node)] for node in range(1, len(tree))]
            assert sorted(found, reverse=True) == pytest.approx(likely[:size])


def test_without_a_match_it_is_the_tree_of_the_streams():
    for seed in range(10):
        candidates, log_probs = random_candidates(3, 3, seed)
        for size in (1, 5, 12):
            settings = DraftSettings(lookup=True, tree_size=size)
            found = grow(settings, 7, candidates, log_probs)
            expected = best_first_tree(7, candidates, log_probs, size)
            for a, b in zip(arrays(found), arrays(expected), strict=True):
                assert (a == b).all()


def test_lookup_goes_on_behind_a_stream_and_past_the_streams():
    """Streams know of a corrected word, lookup of what follows it."""
    text = [1, 2, 3, 4, 5, 6, 9]
    settings = DraftSettings(lookup=True, lookup_size=5, tree_size=5)
    candidates, log_probs = np.array([[2]], np.int32), np.array([[-0.1]], np.float32)
    tree = grow(settings, 9, candidates, log_probs, text)
    assert tree.is_chain
    assert tree.tokens.tolist() == [9, 2, 3, 4, 5, 6]
    assert len(grow(replace(settings, lookup_size=3), 9, candidates, log_probs, text)) == 4


@pytest.mark.parametrize(
    ("settings", "gamma", "most"),
    [
        ({}, 3, 8),
        ({"tree_size": 5}, 3, 5),
        ({"tree_size": 20}, 3, 20),
        ({"tree_size": None, "tree_width": 1}, 3, 13),
        ({"tree_size": None, "tree_width": 2, "lookup_size": 3}, 2, 9),
        ({"tree_size": None}, 0, 10),
        ({"num_streams": 0}, 3, 8),
        ({"num_streams": 1, "tree_size": None, "tree_width": 1}, 3, 11),
    ],
)
def test_the_node_budget(settings, gamma, most):
    rng = np.random.default_rng(0)
    settings = DraftSettings(lookup=True, **settings)
    text = rng.integers(0, 4, 200).tolist()
    candidates, log_probs = NO_STREAMS
    if gamma:
        candidates, log_probs = random_candidates(gamma, 4, 0)
    tree = grow(settings, 7, candidates, log_probs, text)
    assert_well_formed(tree)
    assert len(tree) == 1 + most
    depth = gamma if settings.num_streams is None else settings.num_streams
    assert settings.most_nodes(depth) == most


def test_lookup_keeps_the_threshold_of_likely_drafts():
    assert draft_settings(lookup=True) == replace(LIKELY_DRAFTS, lookup=True)


# The output ---------------------------------------------------------------------------


def known(text):
    """Makes drafters whose lookup has read ``text`` before the prompt."""
    return lambda settings, streams, prompt: make_drafter(settings, streams, [*text, *prompt])


@pytest.mark.parametrize("lookup_alone", [False, True])
def test_runs_longer_than_the_streams_are_accepted(lookup_alone, monkeypatch):
    """Tokens and KV rows are plain decoding's."""
    model, count, expected = speculative_model(seed=1), 40, sequel("grouped heads, tied")
    if lookup_alone:
        model = replace(model, streams=None)
    monkeypatch.setattr(drafter, "make_drafter", known([*PROMPT, *expected]))
    oracle = Oracle(expected).install(monkeypatch, drafts=False)
    found = tokens_of(model, PROMPT, count, lookup=True)
    assert_lossless(model.model, PROMPT, found, expected)
    assert oracle.longest > 4
    assert len(oracle.paths) < 0.5 * count
    assert_same_rows(oracle.decoders[0].caches, plain_caches(model.model, [*PROMPT, *found][:-1]))


def test_a_text_that_repeats_itself_is_foreseen(monkeypatch):
    """No help: an ordinary random model soon runs in a circle, and lookup sees that."""
    model = speculative_model(seed=1)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= 0
    expected = plain_tokens(model.model, PROMPT, 120)
    oracle = Oracle(expected).install(monkeypatch, drafts=False)
    found = tokens_of(replace(model, streams=None), PROMPT, 100, lookup=True)
    assert_lossless(model.model, PROMPT, found, expected)
    assert len(oracle.paths) < 40


def test_runs_end_where_the_cache_is_quantized(monkeypatch):
    """A run would reach past the row from which mlx_lm reads quantized rows."""
    case = "Llama 3.1"
    expected, log_probs, _ = plain(case, 8, CROSSING)
    monkeypatch.setattr(drafter, "make_drafter", known([*prompt_of(case), *expected]))
    oracle = Oracle(expected).install(monkeypatch, drafts=False)
    kv_cache = arguments(case, 8, CROSSING)
    found = tokens_of(pair(case).model, prompt_of(case), 30, kv_cache=kv_cache, lookup=True)
    assert_same_tokens(found[:30], expected, log_probs.__getitem__)
    ends = np.cumsum([len(prompt_of(case)) - 1, *map(len, oracle.paths)])
    assert CROSSING in ends
    assert oracle.longest > 4
