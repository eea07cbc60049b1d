"""Corrections that change what a text says are found, and left out by ``careful``."""

import json
from pathlib import Path

import pytest
from specstream_mlx.apps.writing_tools.corrections import Correction, careful, corrections

CASES = json.loads((Path(__file__).parent / "corrections.json").read_text())


@pytest.mark.parametrize(("before", "old", "new", "meaning"), CASES["changes something"])
def test_what_changes_the_meaning_says_what(before, old, new, meaning):
    start = before.index(old)
    assert Correction(before, start, start + len(old), new).meaning == meaning


@pytest.mark.parametrize(("before", "old", "new"), CASES["changes nothing"])
def test_spelling_and_grammar_change_nothing(before, old, new):
    start = before.index(old)
    assert Correction(before, start, start + len(old), new).meaning is None


def test_what_is_left_out_stays_as_it_was():
    before = "hi ana,\n\nwe meets on sunday at 5. dont be late\n\ngreets\nBen\n"
    after = "Hi Anna,\n\nWe meet on Saturday at 5. Don't be late."
    text, left = careful(before, after)
    assert text == "Hi ana,\n\nWe meet on sunday at 5. Don't be late\n\ngreets\nBen\n"
    assert [one.meaning for one in left] == ["a name", "a weekday", "a line"]
    before = "it costs 1.249,50.\nWith kind regards\nJo Vermeer"
    after = "It costs 1.249, 50. With kind regards.\nJo Vermeer"
    text, left = careful(before, after)
    assert text == "It" + before[2:]
    assert [one.meaning for one in left] == ["a number", "a signature"]


def test_all_corrections_make_the_text():
    before, after = "i has two cat ,and a  dog", "I have two cats, and a dog."
    text, place = "", 0
    for one in corrections(before, after):
        text += before[place : one.start] + one.text
        place = one.end
    assert " ".join((text + before[place:]).split()) == after
    assert corrections(after, after) == []
