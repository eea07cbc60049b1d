"""Errors that people make, put into text that is right as it stands.

For training a proofreader: the right text is the target. An error is one that a reader repairs to
that text with certainty, so names, numbers, quotations and addresses stay, and nothing is dropped
or exchanged that the rest of the text does not tell. What people misspell and confuse is written in
``text/errors``, a right form and its wrong forms a line; slips of the keys are made here.
"""

import random
from functools import cache
from typing import Literal

from .error_kinds import KINDS
from .error_kinds.signs import ASKED, lowered, no_full_stop, without_apostrophe
from .error_kinds.source import Edit, Source, table

_WEIGHTS = {
    "misspelling": 24,
    "slip": 12,
    "confusion": 12,
    "verb": 10,
    "agreement": 7,
    "apostrophe": 10,
    "capital": 8,
    "mark": 10,
    "missing": 5,
    "preposition": 3,
    "space": 4,
    "doubled": 4,
}
_SLOPPY = 0.12  # of the texts are typed without capitals, apostrophes and last mark


class _Made:
    """The errors chosen for a text, which leave each other room."""

    def __init__(self, text: Source) -> None:
        self.text = text
        self.edits: list[Edit] = []

    def add(self, edit: Edit, room: int) -> bool:
        """Add an edit unless it changes what stays, or lies nearer than ``room`` to another."""
        near = any(
            edit.start < other.end + room and other.start < edit.end + room for other in self.edits
        )
        if near or self.text.keeps(edit.start, edit.end):
            return False
        if self.text.text[edit.start : edit.end] == edit.put:
            return False
        self.edits.append(edit)
        return True

    def result(self) -> str:
        text = self.text.text
        for edit in sorted(self.edits, key=lambda edit: edit.start, reverse=True):
            text = text[: edit.start] + edit.put + text[edit.end :]
        return text


@cache
def _settled(spelling: Literal["us", "uk"] | None) -> frozenset[str]:
    """The words that are spelt in another way where the text may come from."""
    variants = [(us, uk) for us, (uk,) in table("variants").items()]
    sides = {"us": (1,), "uk": (0,), None: (0, 1)}[spelling]
    return frozenset(pair[side] for pair in variants for side in sides)


def with_errors(text: str, rng: random.Random, spelling: Literal["us", "uk"] | None = None) -> str:
    """Put errors into a text that is right as it stands: mostly one to three.

    Args:
        text: one that has no errors.
        rng: what the choice is drawn from; the same state makes the same errors.
        spelling: that of the text, where it is known. Words that are spelt differently in the two
            are left alone in a text that could be either.

    Returns:
        The text with errors; the text itself if there is nothing in it that could be wrong.
    """
    source = Source(text, _settled(spelling))
    made = _Made(source)
    count = _count(len(source.tokens), rng)
    if rng.random() < _SLOPPY:
        _be_sloppy(made, rng)
        count //= 2
    left = dict(_WEIGHTS)
    while left and (count > 0 or not made.edits):
        name = rng.choices(list(left), list(left.values()))[0]
        edits = list(KINDS[name](source, rng))
        rng.shuffle(edits)
        if any(made.add(edit, room=2) for edit in edits):
            count -= 1
            left[name] = max(1, left[name] // 2)
        else:
            del left[name]
    return made.result()


def _count(words: int, rng: random.Random) -> int:
    """Number of errors that a text gets: at most one for each four words."""
    count = rng.choices((1, 2, 3, 4, 5, 6, 7), (38, 30, 19, 8, 2, 2, 1))[0]
    return max(1, min(count, words // 4))


def _be_sloppy(made: _Made, rng: random.Random) -> None:
    """No capitals, apostrophes and last mark, and at times the short forms of text messages."""
    text = made.text
    if rng.random() < 0.25:
        shorthand = table("shorthand")
        for token in text.tokens:
            short = shorthand.get(token.word.lower())
            if short and token.common and rng.random() < 0.7:
                made.add(Edit(token.start, token.end, rng.choice(short)), room=0)
    for edit in without_apostrophe(text, rng):
        made.add(Edit(edit.start, edit.end, edit.put.lower()), room=0)
    for edit in lowered(text, rng):
        made.add(edit, room=0)
    for match in ASKED.finditer(text.text):
        if match.end() == len(text.text):
            made.add(Edit(*match.span(1), ""), room=0)
    for edit in no_full_stop(text, rng):
        made.add(edit, room=0)
