"""Swaps: further wordings of proofreading items, by exchanging words for others of their kind.

The plans of the training text use few modals, conjunctions and verbs in each of their places, and a
model that has learned these by heart writes them where a held-out plan has others. A swap changes
a word in content and target alike to one that is as correct there; the errors stay as they are.
"""

import random
from collections.abc import Callable, Sequence

from .tasks import Item, messages
from .unchanged import settled_words

_MODALS = "can could will would should must may might shall".split()
_CONJUNCTIONS = "because if when while although since once until unless".split()
_JUDGEMENTS = "easy important hard useful possible necessary better good".split()
_LEADS = frozenset((*_MODALS, *"to please not you i we they don't can't let's".split()))
_FORMS = list(zip(*((base, *forms) for base, forms in messages.VERBS.items()), strict=True))

Swap = Callable[[Sequence[str], int], Sequence[str]]
"""A function of words and a place: the words that may stand there, none if it does not fit."""


def _modal(words: Sequence[str], place: int) -> Sequence[str]:
    """Other modals for a modal; the verb behind it stays as it is."""
    return _MODALS if words[place].lower() in _MODALS else ()


def _conjunction(words: Sequence[str], place: int) -> Sequence[str]:
    """Conjunctions for "because" or "if" within a sentence, and for "If" at its start."""
    inside = place > 0 and words[place - 1][-1] not in ".?"
    fits = words[place] in ("because", "if") if inside else words[place] == "If"
    return _CONJUNCTIONS if fits else ()


def _judgement(words: Sequence[str], place: int) -> Sequence[str]:
    """Other adjectives for the one in "it's easy to ..."."""
    behind = words[place + 1 : place + 2] == ["to"]
    before = place > 0 and words[place - 1].lower() in ("it's", "is")
    return _JUDGEMENTS if behind and before and words[place] in _JUDGEMENTS else ()


def _verb(words: Sequence[str], place: int) -> Sequence[str]:
    """The same form of other verbs, where the word before it asks for this form."""
    if not place or place + 1 == len(words):
        return ()
    if words[place + 1] in ("to", "with", "about"):  # goes with some verbs only
        return ()
    before, (bases, _, participles, gerunds) = words[place - 1].lower(), _FORMS
    if words[place] in bases and before in _LEADS:
        return bases
    if words[place] in participles and before in ("has", "have", "hasn't", "haven't", "you've"):
        return participles
    return gerunds if words[place] in gerunds and before in ("for", "before", "i'm") else ()


_SWAPS: tuple[Swap, ...] = (_modal, _conjunction, _judgement, _verb)


def with_swaps(item: Item, count: int, rng: random.Random) -> Item:
    """Swap up to ``count`` words of an item that are correct and have correct neighbours."""
    content, target = item.content.split(" "), item.target.split(" ")
    places = settled_words(item)
    for _ in range(count):
        fits = [
            [(at, to, words) for at, to in places if (words := swap(target, to))] for swap in _SWAPS
        ]
        if not any(fits):
            break
        at, to, words = rng.choice(rng.choice([kind for kind in fits if kind]))
        word = rng.choice(words)
        content[at] = target[to] = word.capitalize() if target[to][0].isupper() else word
    return Item(item.task, " ".join(content), " ".join(target), item.templates)
