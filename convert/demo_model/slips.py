"""Slips: further errors for the proofreading items of the training split.

The test split holds out whole types of errors. Trained on a closed list of types, a model repairs
these and copies everything else; slips of many kinds teach it to repair whatever breaks a message.
No slip is an error that a held-out type could have made of the same words.
"""

import random
import string
from collections.abc import Callable

from .tasks import Item, messages

# The tasks are frozen (their hash stands in result tables): what is private there stays so.
from .tasks.proofread import _TEST_ERRORS as HELD_OUT_ERRORS
from .tasks.proofread import _bare
from .unchanged import settled_words

_FORMS = {form: (base, *forms) for base, forms in messages.VERBS.items() for form in (base, *forms)}
_LEADS = frozenset(
    """to will can can't could must should i'll they'll you'll we'll did didn't have has haven't
    hasn't i've we've they've you've for before please let's don't""".split()
)
_DATES = frozenset((*messages.DAYS, *messages.MONTHS))

Slip = Callable[[list[str], int, random.Random], str | None]
"""A function of words and a place: the word to put there, ``None`` if the slip does not fit."""


def _doubles_letter(right: str, wrong: str) -> bool:
    return any(wrong == right[: at + 1] + right[at:] for at in range(len(right)))


def _letters(words: list[str], place: int, rng: random.Random) -> str | None:
    """A letter too many, one too few, a wrong one, or two letters next but one swapped."""
    bare = _bare(words[place])
    if len(bare) < 4 or bare.lower() not in messages.VOCABULARY:
        return None
    at = rng.randrange(1, len(bare))
    letter = rng.choice(string.ascii_lowercase)
    changed = [bare[:at] + letter + bare[at:], bare[:at] + letter + bare[at + 1 :]]
    if bare[at].isalpha():
        changed.append(bare[:at] + bare[at + 1 :])
    if at + 2 < len(bare):
        changed.append(bare[:at] + bare[at + 2] + bare[at + 1] + bare[at] + bare[at + 3 :])
    wrong = rng.choice(changed)
    if wrong.lower() in messages.VOCABULARY:
        return None
    return wrong + words[place][len(bare) :]


def _apostrophe(words: list[str], place: int, rng: random.Random) -> str | None:
    """Another sign in the apostrophe's place, or the apostrophe at another place."""
    word = words[place]
    at = word.find("'")
    if at < 1:
        return None
    without = word[:at] + word[at + 1 :]
    moved = [without[: at + step] + "'" + without[at + step :] for step in (-1, 1)]
    return rng.choice([word.replace("'", sign) for sign in ';"` '] + moved)


def _contraction(words: list[str], place: int, rng: random.Random) -> str | None:
    """A contraction without its form of "be", or without its apostrophe and one letter."""
    word = words[place]
    at = word.find("'")
    if at < 1 or word.lower() not in messages.VOCABULARY:
        return None
    if word[at:] in ("'m", "'re") or word.lower() == "it's":
        return word[:at]
    without = word.replace("'", "")
    cut = rng.randrange(1, len(without))
    return without[:cut] + without[cut + 1 :]


def _capitals(words: list[str], place: int, rng: random.Random) -> str | None:
    """A word with wrong capitals: a small word capitalised, or all letters."""
    bare = _bare(words[place])
    if bare not in messages.VOCABULARY and bare not in _DATES:
        return None
    return rng.choice([words[place].upper(), bare[0] + words[place][1:].upper(), bare.title()])


def _mark(words: list[str], place: int, rng: random.Random) -> str | None:
    """A wrong mark at the end of a sentence."""
    if words[place][-1] not in ".?":
        return None
    marks = {",", ";", " -", "!", ".", "?"} - {words[place][-1]}
    return words[place][:-1] + rng.choice(sorted(marks))


def _repeated_pair(words: list[str], place: int, rng: random.Random) -> str | None:
    """A word, the one before it, and the word again."""
    if not place or not words[place].isalpha() or not words[place - 1].isalpha():
        return None
    return f"{words[place]} {words[place - 1]} {words[place]}"


def _stutter(words: list[str], place: int, rng: random.Random) -> str | None:
    """A longer word three times."""
    word = words[place]
    return f"{word} {word} {word}" if len(word) > 3 and word.isalpha() else None


def _verb_form(words: list[str], place: int, rng: random.Random) -> str | None:
    """A wrong form of a verb whose form is determined by the word before it."""
    bare = _bare(words[place])
    if not place or bare not in _FORMS or words[place - 1].lower() not in _LEADS:
        return None
    others = [form for form in _FORMS[bare] if form != bare]
    if words[place - 1].lower() in ("for", "before"):
        others = [form for form in others if form not in messages.VERBS]
    return rng.choice(others) + words[place][len(bare) :]


def _plural(words: list[str], place: int, rng: random.Random) -> str | None:
    """A plural with an apostrophe or a letter too many, or a "z", at its end."""
    bare = _bare(words[place])
    if bare not in messages.PLURALS:
        return None
    return bare[:-1] + rng.choice(["'s", "es", "z"]) + words[place][len(bare) :]


def _stands_before_time(words: list[str], place: int) -> bool:
    """Whether the word is "at" or "on" and a day, a month or a number follows."""
    if words[place] not in ("at", "on") or place + 1 == len(words):
        return False
    following = _bare(words[place + 1])
    return following in _DATES or following[0].isdigit()


def _missing(words: list[str], place: int, rng: random.Random) -> str | None:
    """A "to" missing before a verb, or a preposition missing before a time."""
    following = _bare(words[place + 1]) if place + 1 < len(words) else ""
    before_verb = words[place] == "to" and following in messages.VERBS
    return "" if before_verb or _stands_before_time(words, place) else None


def _preposition(words: list[str], place: int, rng: random.Random) -> str | None:
    """A wrong preposition before a time."""
    return rng.choice(["of", "with", "to"]) if _stands_before_time(words, place) else None


_SLIPS: tuple[Slip, ...] = (
    _letters,
    _apostrophe,
    _contraction,
    _capitals,
    _mark,
    _repeated_pair,
    _stutter,
    _verb_form,
    _plural,
    _missing,
    _preposition,
)


def with_slips(item: Item, count: int, rng: random.Random) -> Item:
    """Put up to ``count`` slips into an item, in correct words that have correct neighbours."""
    words, targets = item.content.split(" "), item.target.split(" ")
    places = settled_words(item)
    held_out = {edit for error in HELD_OUT_ERRORS.values() for edit in error(targets, rng)}
    used: set[int] = set()
    for _ in range(count):
        slip = rng.choice(_SLIPS)
        fits = []
        for place, target in places:
            wrong = slip(targets, target, rng)
            free = not used & {place - 1, place, place + 1}
            if wrong is None or not free or (target, wrong) in held_out:
                continue
            if not _doubles_letter(_bare(targets[target]), _bare(wrong)):
                fits.append((place, wrong))
        if fits:
            place, words[place] = rng.choice(fits)
            used.add(place)
    return Item(item.task, " ".join(filter(None, words)), item.target, item.templates)
