"""Wrong grammar: verbs, agreement, prepositions and small words that are missing."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from .source import (
    Edit,
    Source,
    cased,
    pattern_of,
    phrases_of,
    singular_of,
    table,
    vocabulary,
    with_s,
)

_ADVERB = r"(?:already |just |never |ever |always |not |also |still |finally |even |all |both )?"
_PRONOUN = r"(?:i|you|he|she|it|we|they|anyone|anybody|someone|somebody)"
_HAVE = r"\b(?:have|has|had|haven't|hasn't|hadn't|having|i've|you've|we've|they've)"
_AFTER_HAVE = pattern_of(rf"{_HAVE} (?:{_PRONOUN} )?{_ADVERB}(\w+)\b")
_AFTER_DID = pattern_of(rf"\b(?:didn't|did {_PRONOUN}|did not) {_ADVERB}(\w+)\b")
_AFTER_MODAL = pattern_of(r"\b(?:will|can|can't|could|should|must|i'll|we'll|you'll) (\w+)\b")
_SUBJECT_AND_PAST = pattern_of(rf"\b{_PRONOUN} {_ADVERB}(\w+)\b")
_AFTER_HE = pattern_of(r"\b(?:he|she|it|everyone|everybody|nobody|somebody|someone) (\w+s)\b")
_AFTER_THEY = pattern_of(r"(?<!did )(?<!let )(?<!make )(?<!makes )\b(?:we|they) (\w+)\b(?!')")
_SWAPS = [
    (pattern_of(rf"(?<!if )(?<!wish )\b(?:{before}) ({right})\b(?!')"), wrong)
    for before, right, wrong in (
        ("he|she|it|that|this|everyone|nobody", "doesn't", "don't"),
        ("we|they", "don't", "doesn't"),
        ("i|he|she", "was", "were"),
        ("we|you|they|there", "were", "was"),
        ("we|you|they|these|those", "are", "is"),
        ("he|she|it|everyone|nobody|everybody", "has", "have"),
        ("i|we|you|they", "have", "has"),
        ("i|we|you|they", "haven't", "hasn't"),
        ("he|she|it", "hasn't", "haven't"),
        ("he|she|it", "wasn't", "weren't"),
        ("we|you|they", "weren't", "wasn't"),
        ("we|you|they", "aren't", "isn't"),
        ("i", "saw", "seen"),
        ("i|he|she|we|they", "did(?= (?:it|that|this|my|the|nothing|everything))", "done"),
        ("i'm|i am|i was|we're|we are|she's|he's|i'm so|i'm very", "excited", "exciting"),
        ("i'm|i am|i was|we're|we are|she's|he's|i'm so|i'm very", "bored", "boring"),
        ("i'm|i am|i was|we're|we are|she's|he's|i'm so|i'm very", "interested", "interesting"),
        ("i'm|i am|i was|we're|we are|she's|he's|i'm so|i'm very", "surprised", "surprising"),
        ("i'm|i am|i was|we're|we are|she's|he's|i'm so|i'm very", "confused", "confusing"),
        ("please find|find", "attached", "attach"),
    )
]
_QUESTIONS = [
    (
        pattern_of(rf"(?<!rather )(?<!to )(?<!ld )(?<!ll )(?<!'d )\b({right})(?= (?:{behind})\b)"),
        wrong,
    )
    for right, behind, wrong in (
        ("does", "he|she|it|anyone|anybody|this|that|your (?:mum|mom|dad|sister|brother)", "do"),
        ("do", "you|we|they|i", "does"),
        ("were", "you|we|they", "was"),
        ("are", "these|those", "is"),
        ("have", "you|we|they", "has"),
        ("has", "he|she|it|anyone|anybody", "have"),
    )
]
_FORWARD = pattern_of(r"\bforward to (\w{2,}ing)\b")
_NEGATED = pattern_of(r"n't (?:\w+ )?(any)\b(?! (?:of|more|longer|other))")
_COMPARED = pattern_of(
    r"(?<!more )(?<!the )\b(better|bigger|easier|cheaper|faster|older|younger|warmer|colder|"
    r"quicker|taller|smaller|stronger|happier|nicer|quieter|louder|heavier|cleaner|safer) than\b"
)
_LASTED = pattern_of(
    rf"{_HAVE}(?:n't)? [^.?!,]{{2,40}} (for) (?:\w+ (?:years|months|weeks|days|hours)|ages)\b"
)


@dataclass(frozen=True)
class _Verbs:
    """Forms of the irregular verbs, and bases of all verbs by their form in -s."""

    past_of: dict[str, str]
    past_of_participle: dict[str, str]
    regular: dict[str, str]
    base_of_s: dict[str, str]
    s_of_base: dict[str, str]


_REGULAR_VERBS = """
need want like look seem work live love start open close ask help wait call play walk talk stay
show smell taste sound hope miss move turn arrive believe remember expect prefer depend
deserve use agree enjoy collect deliver finish include save plan visit remind
""".split()


@cache
def _verbs() -> _Verbs:
    rows = [(base, *forms) for base, forms in table("irregular").items()]
    # "it beat" is right too: it is past
    bases = [base for base, past, _, _ in rows if past != base] + _REGULAR_VERBS
    s_of_base = {base: with_s(base) for base in bases}
    return _Verbs(
        {base: past for base, past, _, _ in rows if past != base},
        {part: past for _, past, part, _ in rows if past != part},
        {past: wrong for base, past, _, wrong in rows if past != base},
        {third: base for base, third in s_of_base.items()},
        s_of_base,
    )


def _looked_up(text: Source, pattern: re.Pattern[str], forms: dict[str, str]) -> Iterable[Edit]:
    """Edits of the group of each match, if ``forms`` has a wrong form for it."""
    for match in pattern.finditer(text.text):
        wrong = forms.get(match[1].lower())
        if wrong is not None:
            yield Edit(*match.span(1), cased(match[1], wrong))


def _swapped(text: Source, swaps: list[tuple[re.Pattern[str], str]]) -> Iterable[Edit]:
    for pattern, wrong in swaps:
        for match in pattern.finditer(text.text):
            yield Edit(*match.span(1), cased(match[1], wrong))


def wrong_verb(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Wrong forms of verbs, and of the words that go with them."""
    verbs = _verbs()
    yield from _looked_up(text, _AFTER_HAVE, verbs.past_of_participle)
    yield from _looked_up(text, _AFTER_DID, verbs.past_of)
    yield from _looked_up(text, _AFTER_HE, verbs.base_of_s)
    yield from _looked_up(text, _AFTER_THEY, verbs.s_of_base)
    if rng.random() < 0.25:  # these fit nearly everywhere
        yield from _looked_up(text, _AFTER_MODAL, verbs.past_of)
    yield from _looked_up(text, _SUBJECT_AND_PAST, verbs.regular)
    yield from _swapped(text, _SWAPS)
    yield from _swapped(text, _QUESTIONS)
    for match in _FORWARD.finditer(text.text):
        base = match[1][:-3]
        if base in vocabulary():
            yield Edit(*match.span(1), base)
    yield from _swapped(text, [(_NEGATED, "no"), (_LASTED, "since")])
    for match in _COMPARED.finditer(text.text):
        yield Edit(*match.span(1), f"more {match[1]}")


_COUNTED = pattern_of(
    r"(?:\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|"
    r"forty|fifty|several|both|many)|(?<![\d.,:$£€-])(?:[2-9]|[1-9]\d{1,2})) ([a-z]{4,}s)\b(?!['-])"
)
_ONE_OF = pattern_of(r"\bone of (?:the|my|our|your|his|her|their|these|those) ([a-z]{4,}s)\b(?!')")
_EACH = pattern_of(r"\b(?:every|each) ([a-z]{3,})\b(?!['-])")
_NOT_COUNTED = frozenset("one other single last time way so has is was that".split())
_AGREEMENTS = [
    (pattern_of(pattern), wrong)
    for pattern, wrong in (
        (r"\b(this) (?:week|morning|year|month|evening|afternoon|weekend)\b(?!')", "these"),
        (r"\b(these|those) (?:two|three|four|five|six)\b", "this"),
        (r"\b(these|those) [a-z]+s (?:are|were|have|need|look|don't|aren't)\b", "this"),
        (r"\b(many) [a-z]+s\b", "much"),
        (r"\bhow (many)\b", "much"),
        (r"\b(much) (?:money|time|water|work|sugar|milk|help|room|space|noise|trouble|salt|food|"
         r"paint|traffic|rain|snow|sleep|coffee|tea|butter|flour)\b", "many"),
        (r"\b(a) (?:h|uni|use|eu|one|y)[a-z]+", "an"),
        (r"\b(an) [a-z]+", "a"),
        (r"\b(?:the|these|those|my|our|your|both) [a-z]{3,}[^su']s (are)\b", "is"),
        (r"\b(?:the|these|those|my|our|your|both) [a-z]{3,}[^su']s (were)\b", "was"),
        (r"\b(?:the|these|those|my|our|your|both) [a-z]{3,}[^su']s (have)\b", "has"),
    )
]  # fmt: skip


def disagreeing(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Words that do not agree in number, and "a" for "an"."""
    for pattern in (_COUNTED, _ONE_OF):
        for match in pattern.finditer(text.text):
            singular = singular_of(match[1].lower()) if match[1].islower() else None
            if singular:
                yield Edit(*match.span(1), singular)
    for match in _EACH.finditer(text.text):
        plural = with_s(match[1])
        if match[1] not in _NOT_COUNTED and match[1].islower() and plural in vocabulary():
            yield Edit(*match.span(1), plural)
    yield from _swapped(text, _AGREEMENTS)


_TO_VERB = pattern_of(
    r"\b(?:want|wants|wanted|need|needs|needed|have|has|had|going|trying|try|tried|forgot|able|used|"
    r"supposed|decided|plan|planning|promised|ought|hoping|hope|would like|you like|remember|"
    r"offered|agreed|expect|due|ready|asked (?:me|him|her|us|them|you)|"
    r"how|where|what)( to) [a-z]{2,}"
)
_BEFORE_NOUNS = frozenset("the my our your his her their this that me".split())
_missing_phrase = phrases_of("missing")


def missing(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Small words missing where no other could stand."""
    yield from _missing_phrase(text, rng)
    for match in _TO_VERB.finditer(text.text):
        if text.lower[match.end(1) + 1 : match.end()] not in _BEFORE_NOUNS:
            yield Edit(*match.span(1), "")


_DAY_PREPOSITION = re.compile(r"\b([Oo]n) (?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?\b")
_MONTH_PREPOSITION = re.compile(
    r"\b([Ii]n) (?:January|February|March|April|June|July|August|September|October|November|"
    r"December)(?! \d)\b"
)
_preposition_phrase = phrases_of("prepositions")


def wrong_preposition(text: Source, rng: random.Random) -> Iterable[Edit]:
    """A preposition for another one, where only one is right."""
    yield from _preposition_phrase(text, rng)
    for pattern, wrong in ((_DAY_PREPOSITION, ("in", "at")), (_MONTH_PREPOSITION, ("on", "at"))):
        for match in pattern.finditer(text.text):
            yield Edit(*match.span(1), cased(match[1], rng.choice(wrong)))
