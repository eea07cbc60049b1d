"""Task "proofread": correct the errors of a short workplace message, and change nothing else.

The target is a correct message (``messages``); the content is the same message with one to four
errors, or, in about 8% of the items, none. Every error is recoverable: a wrong spelling is one
edit away from exactly one word of the vocabulary, an article is only dropped before a singular
noun (whose kind determines it), and coined names and numbers stay as they are.

Held out for the test split: the message plans of ``messages.TEST_PLANS`` and the error types of
``_TEST_ERRORS``, which are siblings of trained ones (doubled letters beside dropped and swapped
ones, ``"Ive"`` beside ``"Ill"``, ``"will sent"`` beside ``"to sent"``, ...). Test items mix
held-out and trained errors.
"""

import random
import re
import string
from collections.abc import Callable, Iterable
from functools import cache

from . import messages, names
from .item import Item, Split

NAME = "proofread"
INSTRUCTION = "Proofread this message."

Edit = tuple[int, str]
"""The place of a word, and what replaces it (nothing, one word or two)."""
Injector = Callable[[list[str], random.Random], list[Edit]]

_VERBS = messages.VERBS
_BASES = {form: base for base, forms in _VERBS.items() for form in forms}
_PARTICIPLES = {forms[1]: base for base, forms in _VERBS.items()}
_GERUNDS = {forms[2]: base for base, forms in _VERBS.items()}
_FIRST_NAMES = frozenset(names.FIRST_NAMES)
_NOUNS = frozenset(messages.SINGULARS) | frozenset(messages.PLURALS)
_MODIFIERS = frozenset(messages.MODIFIERS)
_LOOKALIKES = frozenset("their there they're then than your its lose loose affect effect".split())
_KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _bare(word: str) -> str:
    """``word`` without its closing punctuation."""
    return word.rstrip(".,?")


def _replace(word: str, new: str) -> str:
    """``word`` with ``new`` in its place: same punctuation, same capital."""
    bare = _bare(word)
    if bare[0].isupper() and bare != "I":
        new = new[0].upper() + new[1:]
    return new + word[len(bare) :]


def _starts_sentence(words: list[str], place: int) -> bool:
    return place == 0 or words[place - 1][-1] in ".?"


# --- spelling -----------------------------------------------------------------------------------


@cache
def _near_words(text: str) -> frozenset[str]:
    """The words of the vocabulary at most one edit (or swap) away from ``text``."""
    cuts = [(text[:i], text[i:]) for i in range(len(text) + 1)]
    near = {text}
    for head, tail in cuts:
        near.add(head + tail[1:])
        near.add(head + tail[1:2] + tail[:1] + tail[2:])
        for letter in string.ascii_lowercase:
            near.add(head + letter + tail)
            near.add(head + letter + tail[1:])
    return frozenset(near & messages.VOCABULARY)


def _misspelled(words: list[str], rng: random.Random, change: Callable[[str, int], str]) -> list:
    edits = []
    for place, word in enumerate(words):
        bare = _bare(word)
        if len(bare) < 4 or bare not in messages.VOCABULARY or bare in _LOOKALIKES:
            continue
        wrong = change(bare, rng.randrange(1, len(bare)))
        if wrong.isalpha() and wrong != bare and _near_words(wrong) == {bare}:
            edits.append((place, _replace(word, wrong)))
    return edits


def _drop_letter(words: list[str], rng: random.Random) -> list[Edit]:
    return _misspelled(words, rng, lambda word, i: word[:i] + word[i + 1 :])


def _double_letter(words: list[str], rng: random.Random) -> list[Edit]:
    return _misspelled(words, rng, lambda word, i: word[: i + 1] + word[i:])


def _swap_letters(words: list[str], rng: random.Random) -> list[Edit]:
    return _misspelled(words, rng, lambda word, i: word[:i] + word[i : i + 2][::-1] + word[i + 2 :])


def _hit_next_key(words: list[str], rng: random.Random) -> list[Edit]:
    def change(word: str, i: int) -> str:
        row = next((row for row in _KEY_ROWS if word[i] in row), "'")
        at = row.find(word[i])
        neighbours = row[max(at - 1, 0) : at] + row[at + 1 : at + 2]
        return word[:i] + (rng.choice(neighbours) if neighbours else "") + word[i + 1 :]

    return _misspelled(words, rng, change)


# --- capitals and punctuation -------------------------------------------------------------------


def _lower_start(words: list[str], rng: random.Random) -> list[Edit]:
    return [
        (place, word[0].lower() + word[1:])
        for place, word in enumerate(words)
        if _starts_sentence(words, place)
        and _bare(word).lower() in messages.VOCABULARY
        and _bare(word) not in _FIRST_NAMES
        and not _is_first_person(word)
    ]


def _is_first_person(word: str) -> bool:
    return re.match(r"I\b", word) is not None


def _lower_i(words: list[str], rng: random.Random) -> list[Edit]:
    return [(place, "i" + word[1:]) for place, word in enumerate(words) if _is_first_person(word)]


def _lower_name(words: list[str], rng: random.Random) -> list[Edit]:
    edits = []
    for place, word in enumerate(words):
        name = _bare(word).removesuffix("'s")
        if name in _FIRST_NAMES and name.lower() not in messages.VOCABULARY:
            edits.append((place, word.lower()))
    return edits


def _lower_listed(listed: Iterable[str]) -> Injector:
    known = frozenset(listed)

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [(place, word.lower()) for place, word in enumerate(words) if _bare(word) in known]

    return inject


def _drop_mark(mark: str, final: bool) -> Injector:
    """Drops ``mark`` at the end of the message, or of one of the sentences before the last."""

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        places = [len(words) - 1] if final else range(len(words) - 1)
        return [(place, words[place][:-1]) for place in places if words[place].endswith(mark)]

    return inject


def _drop_greeting_comma(words: list[str], rng: random.Random) -> list[Edit]:
    if words[0] not in ("Hi", "Hello", "Dear", "Good"):
        return []
    return [(place, words[place][:-1]) for place in (1, 2) if words[place].endswith(",")][:1]


# --- grammar ------------------------------------------------------------------------------------


def _swap(wrong_of: dict[str, str]) -> Injector:
    """Replaces a word (in any case) by the wrong one that ``wrong_of`` gives for it."""

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [
            (place, _replace(word, wrong_of[_bare(word).lower()]))
            for place, word in enumerate(words)
            if _bare(word).lower() in wrong_of
        ]

    return inject


def _have_singular(words: list[str], rng: random.Random) -> list[Edit]:
    plain = [place for place in range(1, len(words)) if words[place] == "have"]
    return [
        (place, "has")
        for place in plain
        if words[place - 1].lower() in ("we", "they") or words[place - 1] in messages.PLURALS
    ]


def _verb_after(
    leads: Iterable[str], known: Iterable[str], wrong: Callable[[str], str]
) -> Injector:
    """Gives the verb (one of ``known``) that follows one of ``leads`` a wrong form."""
    before = frozenset(leads)
    verbs = frozenset(known)

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        edits = []
        for place in range(1, len(words)):
            lead = words[place - 1]
            if lead in ("not", "already", "just", "still") and place > 1:
                lead = words[place - 2]
            bare = _bare(words[place])
            if bare in verbs and lead.lower() in before and wrong(bare) != bare:
                edits.append((place, _replace(words[place], wrong(bare))))
        return edits

    return inject


def _past(base: str) -> str:
    return _VERBS[base][0]


def _not_participle(participle: str) -> str:
    base = _PARTICIPLES[participle]
    return base if _past(base) == participle else _past(base)


def _question_past(words: list[str], rng: random.Random) -> list[Edit]:
    return [
        (place, _past(words[place]))
        for place in range(2, len(words))
        if words[place - 2].lower() in ("could", "can", "would", "did", "should", "will")
        and re.fullmatch("you|we|I|[A-Z][a-z]+", words[place - 1])
        and words[place] in _VERBS
        and _past(words[place]) != words[place]
    ]


def _head_is_singular(words: list[str], place: int) -> bool:
    """Tell whether the noun phrase that starts at ``place`` has a singular head."""
    if words[place].isalpha() and words[place][0].isupper():
        place += 1
    head = ""
    while place < len(words) and _bare(words[place]) in _NOUNS | _MODIFIERS:
        head = _bare(words[place])
        if words[place] != head:
            break
        place += 1
    return head in messages.SINGULARS


def _drop_article(article: str) -> Injector:
    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [
            (place, "")
            for place in range(len(words) - 1)
            if words[place] == article and (article != "the" or _head_is_singular(words, place + 1))
        ]

    return inject


def _repeat(short: bool) -> Injector:
    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [
            (place, f"{word} {word}")
            for place, word in enumerate(words)
            if word in messages.VOCABULARY and (len(word) <= 3) == short
        ]

    return inject


def _drop_apostrophe(pattern: str) -> Injector:
    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [
            (place, word.replace("'", ""))
            for place, word in enumerate(words)
            if re.fullmatch(pattern, word)
        ]

    return inject


def _drop_possessive(words: list[str], rng: random.Random) -> list[Edit]:
    return [
        (place, word.replace("'", ""))
        for place, word in enumerate(words)
        if word.endswith("'s") and word[:-2] in _FIRST_NAMES and word[:-2] + "s" not in _FIRST_NAMES
    ]


def _preposition(pattern: str, wrong: str) -> Injector:
    """Replaces the first word of what ``pattern`` finds at a word."""

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [
            (place, wrong)
            for place in range(len(words) - 1)
            if re.match(pattern, " ".join(words[place : place + 3]))
        ]

    return inject


def _swap_after(leads: Iterable[str], right: str, wrong: str) -> Injector:
    before = frozenset(leads)

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        return [
            (place, wrong)
            for place in range(1, len(words))
            if words[place] == right and words[place - 1].lower() in before
        ]

    return inject


def _singular_after(leads: Iterable[str]) -> Injector:
    before = frozenset(leads)

    def inject(words: list[str], rng: random.Random) -> list[Edit]:
        edits = []
        for place, word in enumerate(words):
            noun = messages.PLURALS.get(_bare(word))
            first = place - 1
            while first > 0 and words[first] in _MODIFIERS:
                first -= 1
            if noun and first >= 0 and words[first].lower() in before:
                edits.append((place, _replace(word, noun)))
        return edits

    return inject


_DAY = "|".join(messages.DAYS)
_MONTH = "|".join(messages.MONTHS)
_CLOCK = r"\d+(:\d+)? [ap]m"
_HAVE = "have has haven't hasn't i've we've they've you've".split()
_MODALS = "will can can't could must should i'll they'll you'll we'll".split()
_PROGRESSIVE = "is are i'm they're you're".split()
_DIGITS = [str(number) for number in range(2, 100)]

_TRAIN_ERRORS: dict[str, Injector] = {
    "spelling.drop": _drop_letter,
    "spelling.swap": _swap_letters,
    "spelling.next_key": _hit_next_key,
    "capital.start": _lower_start,
    "capital.i": _lower_i,
    "capital.name": _lower_name,
    "capital.weekday": _lower_listed(messages.DAYS),
    "mark.final_period": _drop_mark(".", final=True),
    "mark.final_question": _drop_mark("?", final=True),
    "mark.inner_period": _drop_mark(".", final=False),
    "mark.greeting_comma": _drop_greeting_comma,
    "agreement.is": _swap({"is": "are"}),
    "agreement.are": _swap({"are": "is"}),
    "agreement.was": _swap({"was": "were"}),
    "agreement.has": _swap({"has": "have", "hasn't": "haven't"}),
    "agreement.does": _swap({"does": "do", "doesn't": "don't"}),
    "agreement.third_person": _swap(
        {"needs": "need", "wants": "want", "expects": "expect", "depends": "depend"}
    ),
    "tense.perfect": _verb_after(_HAVE, _PARTICIPLES, _not_participle),
    "tense.to": _verb_after(["to"], _VERBS, _past),
    "tense.did_not": _verb_after(["did", "didn't"], _VERBS, _past),
    "tense.question": _question_past,
    "tense.progressive": _verb_after(_PROGRESSIVE, _GERUNDS, _GERUNDS.__getitem__),
    "confusion.there": _swap({"there": "their"}),
    "confusion.their": _swap({"their": "there"}),
    "confusion.they_are": _swap({"they're": "there"}),
    "confusion.your": _swap({"your": "you're"}),
    "confusion.you_are": _swap({"you're": "your"}),
    "confusion.its": _swap({"its": "it's"}),
    "confusion.than": _swap({"than": "then"}),
    "confusion.to": _swap({"to": "too"}),
    "confusion.too": _swap({"too": "to"}),
    "confusion.affect": _swap({"affect": "effect"}),
    "confusion.effect": _swap({"effect": "affect"}),
    "confusion.should_of": _swap_after(["should"], "have", "of"),
    "article.missing_the": _drop_article("the"),
    "article.missing_a": _drop_article("a"),
    "article.an_for_a": _swap({"a": "an"}),
    "article.a_for_an": _swap({"an": "a"}),
    "repeat.short": _repeat(short=True),
    "apostrophe.not": _drop_apostrophe("[A-Za-z]+n't"),
    "apostrophe.will": _drop_apostrophe("(I|[Tt]hey|[Yy]ou)'ll"),
    "apostrophe.name": _drop_possessive,
    "preposition.in_weekday": _preposition(rf"on ({_DAY})", "in"),
    "preposition.in_date": _preposition(rf"on \d+ ({_MONTH})", "in"),
    "preposition.in_clock": _preposition(f"at {_CLOCK}", "in"),
    "preposition.on_clock": _preposition(f"at {_CLOCK}", "on"),
    "preposition.for": _swap_after(["waiting", "responsible", "thanks"], "for", "of"),
    "plural.number": _singular_after(messages.NUMBER_WORDS),
    "plural.digits": _singular_after(_DIGITS),
}

_TEST_ERRORS: dict[str, Injector] = {
    "spelling.double": _double_letter,
    "capital.month": _lower_listed(messages.MONTHS),
    "mark.inner_question": _drop_mark("?", final=False),
    "agreement.were": _swap({"were": "was"}),
    "agreement.have": _have_singular,
    "tense.modal": _verb_after(_MODALS, _VERBS, _past),
    "tense.gerund": _verb_after(["for", "before"], _GERUNDS, _GERUNDS.__getitem__),
    "confusion.it_is": _swap({"it's": "its"}),
    "confusion.lose": _swap({"lose": "loose"}),
    "confusion.then": _swap({"then": "than"}),
    "article.missing_an": _drop_article("an"),
    "repeat.long": _repeat(short=False),
    "apostrophe.have": _drop_apostrophe("(I|[Ww]e|[Tt]hey|[Yy]ou)'ve"),
    "preposition.at_weekday": _preposition(rf"on ({_DAY})", "at"),
    "preposition.at_date": _preposition(rf"on \d+ ({_MONTH})", "at"),
    "plural.quantifier": _singular_after(messages.QUANTIFIERS),
}

_ERRORS = _TRAIN_ERRORS | _TEST_ERRORS

# Types that fit nearly every message; the others are often tried first, or they would be rare.
_EVERYWHERE = frozenset(
    """spelling.drop spelling.swap spelling.next_key spelling.double capital.start capital.name
    capital.i mark.final_period mark.inner_period article.missing_the confusion.to tense.to
    repeat.short repeat.long""".split()
)

TRAIN_TEMPLATES = messages.TRAIN_PLANS + tuple(_TRAIN_ERRORS)
TEST_TEMPLATES = messages.TEST_PLANS + tuple(_TEST_ERRORS)


def _inject(words: list[str], count: int, rng: random.Random, split: Split) -> tuple[str, list]:
    """The text of ``words`` with ``count`` errors (none touches another), and the errors' types."""
    edited = list(words)
    locked: frozenset[int] = frozenset()
    used: list[str] = []
    for number in range(count):
        held_out = split == "test" and rng.random() < (0.4 if number else 0.8)
        kinds = list(_TEST_ERRORS if held_out else _TRAIN_ERRORS)
        rng.shuffle(kinds)
        order = rng.random()
        if order < 0.2:
            kinds.sort(key=lambda kind: not kind.startswith("spelling."))
        elif order < 0.7:
            kinds.sort(key=_EVERYWHERE.__contains__)
        for kind in kinds:
            edits = [edit for edit in _ERRORS[kind](words, rng) if edit[0] not in locked]
            if edits:
                place, edited_word = rng.choice(edits)
                edited[place] = edited_word
                locked |= {place - 1, place, place + 1}
                used.append(kind)
                break
    return " ".join(word for word in edited if word), used


def make(rng: random.Random, split: Split) -> Item:
    """One message with errors, and the correct message."""
    target, plans = messages.message(rng, split)
    count = 0 if rng.random() < 0.08 else rng.choice((1, 2, 2, 3, 3, 4))
    content, kinds = _inject(target.split(" "), count, rng, split)
    return Item(NAME, content, target, (*plans, *dict.fromkeys(kinds)))
