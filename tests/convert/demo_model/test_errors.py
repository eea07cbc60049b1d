"""Errors put into right text: of every kind, never in what a reader could not put back."""

import random
import re
from collections import Counter

import pytest
from specstream_mlx.convert.demo_model import errors, written
from specstream_mlx.convert.demo_model.error_kinds import KINDS, source


@pytest.fixture(scope="module")
def lines():
    return list(written.read("sentences"))


@pytest.fixture(scope="module")
def pairs(lines):
    """Every written sentence, and what is made of it."""
    rng = random.Random(0)
    return [
        (line.input, errors.with_errors(line.input, rng, line.file.rsplit("-", 1)[1]))
        for line in lines
    ]


def test_numbers_quotations_and_addresses_stay(pairs):
    for text, wrong in pairs:
        assert Counter(re.findall(r"\d+", text)) == Counter(re.findall(r"\d+", wrong))
        for quotation in re.findall(r'"[^"]*"', text):
            assert quotation in wrong
    for text in ("Write to ana@post.example before noon.", "Look at www.shop.example/list_2 now."):
        address = next(word for word in text.split() if "." in word[:-1])
        for seed in range(100):
            assert address in errors.with_errors(text, random.Random(seed))


@pytest.mark.parametrize(
    ("text", "kind", "wrong"),
    [
        ("They've gone home.", "verb", "They've went home."),
        ("She doesn't eat nuts.", "verb", "She don't eat nuts."),
        ("I saw it.", "verb", "I seen it."),
        ("We were late.", "verb", "We was late."),
        ("Two tickets, please.", "agreement", "Two ticket, please."),
        ("Take an umbrella.", "agreement", "Take a umbrella."),
        ("Don't go.", "apostrophe", "Dont go."),
        ("Is that Anna's bag?", "apostrophe", "Is that Annas bag?"),
        ("The dogs are wet.", "apostrophe", "The dog's are wet."),
        ("Call me on Monday.", "capital", "Call me on monday."),
        ("Call me, and I come.", "capital", "Call me, and i come."),
        ("When is it?", "mark", "When is it"),
        ("Hi Ana, come in.", "mark", "Hi Ana come in."),
        ("I want to go.", "missing", "I want go."),
        ("I'm interested in it.", "preposition", "I'm interested on it."),
        ("I have a lot of it.", "space", "I have alot of it."),
        ("Shut the door.", "doubled", "Shut the the door."),
    ],
)
def test_errors_that_people_make_are_among_them(text, kind, wrong):
    rng = random.Random(0)
    right = source.Source(text, frozenset())
    made = {
        text[: edit.start] + edit.put + text[edit.end :]
        for _ in range(50)
        for edit in KINDS[kind](right, rng)
    }
    assert wrong in made
