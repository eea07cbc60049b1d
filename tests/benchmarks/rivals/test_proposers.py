"""Rivals that draft from text alone, against brute force: lookahead, PLD, suffixes, REST."""

import random

import numpy as np
import pytest
from trees import assert_well_formed

from benchmarks.rivals.lookahead import Lookahead
from benchmarks.rivals.pld import PromptLookup
from benchmarks.rivals.rest import Datastore, Retrieval, write_datastore
from benchmarks.rivals.suffix import Match, SuffixAutomaton
from specstream_mlx import UserError
from specstream_mlx.drafting.best_first import tree_of, with_paths
from specstream_mlx.drafting.proposer import FREE, Material
from specstream_mlx.engine.plan import NOTHING_VERIFIED, Verified


def target(path):
    """A target whose token depends on all that comes before."""
    return random.Random(str(path)).randrange(5)


@pytest.mark.parametrize("size", [(5, 4, 2), (3, 2, 3), (1, 3, 1), (5, 7, 7)])
def test_the_window_is_the_papers_jacobi_iteration(size):
    """Against the authors' two-dimensional window, rows and columns, computed in a plain way."""
    columns, ngram, kept = size
    found, root, pool = Lookahead(Material([1, 2, 3]), *size), 3, {}
    found.begin(NOTHING_VERIFIED, FREE)
    window = [list(found._levels[0])]
    for _ in range(3 * ngram):
        behind = []
        for column in range(columns):
            context = [root, *window[0][:column], *(level[column] for level in window[1:])]
            behind.append(target(tuple(context)))
        if len(window) < ngram - 1:
            window.append(behind)
        else:
            for column in range(columns):
                key = [root, *window[0]][column]
                gram = (*(level[column] for level in window[1:]), behind[column])
                known = [one for one in pool.get(key, []) if one != gram]
                pool[key] = [*known, gram][-kept:]
            below = [*window[1:], behind]
            window = [below[0][1:], *below[1:]]
        tree = tree_of(root, with_paths((), found.required()))
        assert_well_formed(tree)
        ends = [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
        predictions = np.array([target(path) for path in ends], np.int32)
        root = int(predictions[0])
        found.accept([root])
        found.begin(Verified(tree, predictions), FREE)
        assert found._levels == window
        assert found._pool == pool
    firsts = dict.fromkeys(gram[0] for gram in reversed(pool.get(root, [])))
    assert [token for token, _ in found.children(())] == list(firsts)


def repetitive(rng, count):
    """A text over few tokens with copies in it."""
    text = [rng.randrange(4) for _ in range(8)]
    while len(text) < count:
        start = rng.randrange(len(text))
        text += [*text[start : start + rng.randint(1, 9)], rng.randrange(6)]
    return text[:count]


def likeliest_path(proposer):
    path = ()
    while guesses := proposer.children(path):
        path = (*path, guesses[0][0])
    return path


def first_run(text):
    """The papers' loop: sizes from 3 to 1, the earliest occurrence with 10 tokens behind it."""
    for size in (3, 2, 1):
        for start in range(len(text) - size):
            behind = start + size
            run = text[behind : behind + 10]
            if text[start:behind] == text[-size:] and len(run) == 10 and behind < len(text) - size:
                return tuple(run)
    return ()


@pytest.mark.parametrize("seed", range(2))
def test_pld_drafts_ten_tokens_behind_the_earliest_match(seed):
    rng = random.Random(seed)
    text = repetitive(rng, 90)
    drafter, found = PromptLookup(Material(text[:20])), set()
    for end in range(20, len(text)):
        assert likeliest_path(drafter) == first_run(text[:end])
        found.add(first_run(text[:end]) != ())
        drafter.accept(text[end : end + 1])
    assert found == {True, False}
    assert drafter.children((99,)) == []


def occurrences(text, part):
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


@pytest.mark.parametrize("seed", range(2))
def test_a_match_is_the_longest_end_that_occurs_and_counts_what_followed(seed):
    """In its own text while that grows, and in another one."""
    rng = random.Random(seed)
    text, other = repetitive(rng, 70), repetitive(rng, 40)
    own, foreign = SuffixAutomaton(), SuffixAutomaton()
    foreign.extend(other)
    matches = Match(own), Match(foreign)
    for end, token in enumerate(text):
        ends = [text[start : end + 1] for start in range(end + 2)]
        for match, known in zip(matches, (text[:end], other), strict=True):
            match.follow(token)
            assert match.length == max(len(part) for part in ends if occurrences(known, part))
            part = text[end + 1 - match.length : end + 1]
            behind = [known[place] for place in occurrences(known, part) if place < len(known)]
            counts = {one: behind.count(one) / (len(behind) + 1) for one in behind}
            best = sorted(counts.values(), reverse=True)[: 4 if part else 0]
            shares = match.shares()
            assert [share for _, share in shares] == pytest.approx(best)
            assert all(counts[one] == pytest.approx(share) for one, share in shares)
        own.extend([token])


def test_what_followed_is_found(tmp_path):
    """In a store whose tokens need 32 bits."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(151_000, 151_005, 300)
    write_datastore(tmp_path / "store", tokens)
    store, text = Datastore(tmp_path / "store"), tokens.tolist()
    for seed in range(30):
        query = rng.integers(151_000, 151_005, 1 + seed % 4).tolist()
        after = [text[end:][:4] for end in occurrences(text, query)]
        expected = sorted([*part, *[-1] * (4 - len(part))] for part in after)
        assert sorted(store.following(query, 10**6, 4).tolist()) == expected


def test_the_longest_end_says_what_follows_by_how_often_it_did(tmp_path):
    sentences = [9, 1, 2, 3, 4] * 3 + [8, 1, 2, 5, 6] * 2
    write_datastore(tmp_path / "store", np.array(sentences))
    drafter = Retrieval(Material([50, 1, 2]), tmp_path / "store")
    drafter.begin(NOTHING_VERIFIED, FREE)
    assert [token for token, _ in drafter.children(())] == [3, 5]
    assert drafter.children((3,))[0][0] == 4
    assert drafter.children((7,)) == []
    drafter.accept([3, 4, 8, 1, 2])
    drafter.begin(NOTHING_VERIFIED, FREE)
    assert [token for token, _ in drafter.children(())] == [5], "a longer end occurs"
    with pytest.raises(UserError, match="cannot be read"):
        Datastore(tmp_path / "none")
