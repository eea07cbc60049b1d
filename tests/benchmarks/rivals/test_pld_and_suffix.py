"""PLD and suffixes, which draft from text alone, against brute force."""

import math
import random

import pytest

from benchmarks.rivals.pld import PromptLookup
from benchmarks.rivals.suffix import Answers, Match, Suffix, SuffixAutomaton
from specstream_mlx.drafting.proposer import Material


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


# pld ------------------------------------------------------------------------------------------


def first_run(text):
    """The papers' loop: sizes from 3 to 1, the earliest occurrence with 10 tokens behind it."""
    for size in (3, 2, 1):
        for start in range(len(text) - size):
            behind = start + size
            run = text[behind : behind + 10]
            if text[start:behind] == text[-size:] and len(run) == 10 and behind < len(text) - size:
                return tuple(run)
    return ()


@pytest.mark.parametrize("seed", range(6))
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


# suffix ---------------------------------------------------------------------------------------


def occurrences(text, part):
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


@pytest.mark.parametrize("seed", range(4))
def test_the_automaton_counts_every_substring(seed):
    rng = random.Random(seed)
    text, automaton = repetitive(rng, 60), SuffixAutomaton()
    for number, token in enumerate(text, start=1):
        automaton.extend([token])
        assert len(automaton.link) <= 2 * number + 1
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            state = 0
            for token in text[start:end]:
                state = automaton.follow[state][token]
            assert automaton.count[state] == len(occurrences(text, text[start:end]))


@pytest.mark.parametrize("seed", range(4))
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


def test_suffix_follows_the_longest_match_and_shares_by_frequency():
    drafter = Suffix(Material([1, 2, 3, 1, 2, 4, 1, 2, 4, 9, 1, 2]))
    guesses = drafter.children(())
    assert [token for token, _ in guesses] == [4, 3]
    assert guesses[0][1] - guesses[1][1] == pytest.approx(math.log(2))
    assert sum(math.exp(score) for _, score in guesses) < 1
    assert drafter.children((4,))[0][0] in (1, 9)
    assert drafter.children((7,)) == []


def test_suffix_knows_earlier_answers_and_drafts_further_behind_longer_matches():
    answers, answer = Answers(), list(range(10, 40))
    first = Suffix(Material([1]), answers)
    first.accept(answer)
    first.finish()
    second = Suffix(Material([2]), answers)
    second.accept(answer[:2])
    short = likeliest_path(second)
    assert short == tuple(answer[2 : 2 + len(short)])
    second.accept(answer[2:8])
    long = likeliest_path(second)
    assert long == tuple(answer[8 : 8 + len(long)])
    assert len(long) > len(short) > 0
    assert likeliest_path(Suffix(Material([2, *answer[:2]]))) == ()
