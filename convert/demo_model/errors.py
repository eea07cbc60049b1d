"""Errors that people make, put into text that is right as it stands.

For training a proofreader: the right text is the target. An error is one that a reader repairs to
that text with certainty, so names, numbers, quotations and addresses stay, and nothing is dropped
or exchanged that the rest of the text does not tell. What people misspell and confuse is written in
``text/errors``, a right form and its wrong forms a line; slips of the keys are made here.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from . import written

FOLDER = written.TEXT / "errors"

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_KEPT = re.compile(
    r'"[^"]*"|“[^”]*”|(?<!\w)\'[^\']+\'(?!\w)'  # quotations
    r"|\S*[\d_@/#\\]\S*(?<![.,?!;:])|[^\s.]+(?:\.[^\s.]+)+"  # numbers, codes and addresses
)
_SENTENCE_START = re.compile(
    r'(?:^|(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)[.?!]\s+|\n)["“(]*$'
)
_ABBREVIATION = re.compile(r"\b(?:Mrs?|Ms|Dr|St|\w\.\w|[A-Z])$")
_DAYS = frozenset(
    """Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February April June July
    September October November December""".split()
)


@dataclass(frozen=True)
class Edit:
    """One error: what is written in the place of ``text[start:end]``."""

    start: int
    end: int
    put: str


@dataclass(frozen=True)
class Token:
    """A word of a text.

    Attributes:
        start: index of its first character.
        end: index behind its last.
        word: as it stands there.
        starts: whether a sentence starts with it.
        common: whether it is no name, abbreviation or code: it may be misspelt.
    """

    start: int
    end: int
    word: str
    starts: bool
    common: bool


@cache
def table(name: str) -> dict[str, list[str]]:
    """The lines of a data file: right forms, and for each its wrong ones."""
    lines = (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").split("\n")[:-1]
    return {right: wrong for right, *wrong in (line.split("\t") for line in lines)}


@cache
def vocabulary() -> Counter[str]:
    """How often each lower-case word stands in the answers of the written text."""
    texts = (line.answer for line in written.read_all() if line.kind != "tables")
    return Counter(word for text in texts for word in _WORD.findall(text) if word.islower())


@cache
def _names() -> frozenset[str]:
    """Words, lower-cased, that are capitalized within sentences of the written text."""
    inside = re.compile(r"(?<=[a-z,] )[A-Z][^\W\d_]+")
    texts = (line.answer for line in written.read_all() if line.kind != "tables")
    return frozenset(word.lower() for text in texts for word in inside.findall(text))


@cache
def _neighbourhood() -> dict[str, list[str]]:
    """Words of the vocabulary by what is left of them without one letter, and by themselves."""
    found: dict[str, list[str]] = {}
    for word in vocabulary():
        for rest in {word, *_shorter(word)}:
            found.setdefault(rest, []).append(word)
    return found


def _shorter(word: str) -> list[str]:
    return [word[:at] + word[at + 1 :] for at in range(len(word))]


class Source:
    """A text and its words; the spans that stay; the words that are not to be misspelt."""

    def __init__(self, text: str, settled: frozenset[str]) -> None:
        self.text = text
        self.lower = text.lower()
        self.kept = [match.span() for match in _KEPT.finditer(text)]
        self.settled = settled

    @cached_property
    def tokens(self) -> list[Token]:
        found = []
        for match in _WORD.finditer(self.text):
            start, end = match.span()
            if not self.keeps(start, end):
                word = match[0]
                starts = bool(_SENTENCE_START.search(self.text, max(0, start - 8), start))
                found.append(Token(start, end, word, starts, self._common(word, starts)))
        return found

    def _common(self, word: str, starts: bool) -> bool:
        lower = word.lower()
        if word.islower():
            return lower not in self.settled
        known = word[1:].islower() and lower in vocabulary() and lower not in _names()
        return starts and known and lower not in self.settled

    def keeps(self, start: int, end: int) -> bool:
        """Whether part of a span is to stay as it is."""
        return any(start < stop and begin < end for begin, stop in self.kept)


Kind = Callable[[Source, random.Random], Iterable[Edit]]
"""The errors of a kind that a text could have; where several are alike, some of them."""


def _cased(right: str, wrong: str) -> str:
    """``wrong`` with a capital if ``right`` has one."""
    return wrong[0].upper() + wrong[1:] if right[0].isupper() else wrong


_SHORT = (
    0.15  # short words stand nearly everywhere: some of them are taken, to leave room for others
)


def _misspelt(text: Source, rng: random.Random) -> Iterable[Edit]:
    misspellings = table("misspellings")
    for token in text.tokens:
        if token.common or (token.word[0].isupper() and token.word in misspellings):
            wrong = misspellings.get(token.word) or misspellings.get(token.word.lower())
            if wrong and (len(token.word) > 4 or rng.random() < _SHORT):
                yield Edit(token.start, token.end, _cased(token.word, rng.choice(wrong)))


_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {
    letter: row[max(0, at - 1) : at] + row[at + 1 : at + 2]
    for row in _ROWS
    for at, letter in enumerate(row)
}


def _slip(word: str, rng: random.Random) -> str:
    """A word with two letters swapped, one doubled, dropped, or one of the next key."""
    at = rng.randrange(1, len(word) - 1)
    kind = rng.random()
    if kind < 0.35:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind < 0.6:
        return word[:at] + word[at + 1 :]
    if kind < 0.8:
        return word[: at + 1] + word[at:]
    beside = rng.choice(_BESIDE.get(word[at], word[at]))
    extra = rng.random() < 0.3
    return word[:at] + beside + word[at + (not extra) :]


def _one_apart(wrong: str, word: str) -> bool:
    """Whether one letter swapped, dropped, added or exchanged makes one word of the other."""
    if len(wrong) != len(word):
        longer, other = sorted((wrong, word), key=len, reverse=True)
        return len(longer) - len(other) == 1 and other in _shorter(longer)
    places = [at for at, (a, b) in enumerate(zip(wrong, word, strict=True)) if a != b]
    if len(places) == 2:
        first, second = places
        swapped = wrong[first] == word[second] and wrong[second] == word[first]
        return second == first + 1 and swapped
    return len(places) < 2


def _repairable(wrong: str, right: str) -> bool:
    """Whether ``wrong`` is no word and no other word is as near to it as ``right`` is."""
    if wrong in vocabulary() or wrong in _names():
        return False
    near = {word for rest in (wrong, *_shorter(wrong)) for word in _neighbourhood().get(rest, ())}
    return not any(word != right and _one_apart(wrong, word) for word in near)


def _slipped(text: Source, rng: random.Random) -> Iterable[Edit]:
    words = [token for token in text.tokens if token.common and len(token.word) > 3]
    for token in rng.sample(words, min(4, len(words))):
        right = token.word.lower()
        wrong = _slip(right, rng) if right.isalpha() and right.isascii() else right
        if wrong != right and _repairable(wrong, right):
            yield Edit(token.start, token.end, _cased(token.word, wrong))


def _confused(text: Source, rng: random.Random) -> Iterable[Edit]:
    confusions = table("confusions")
    for token in text.tokens:
        if token.common or token.starts:
            wrong = confusions.get(token.word.lower())
            if wrong and (len(token.word) > 2 or rng.random() < _SHORT):
                yield Edit(token.start, token.end, _cased(token.word, rng.choice(wrong)))


@cache
def _phrases(name: str) -> dict[str, list[tuple[str, list[str]]]]:
    """The lines of a data file of phrases by their first words."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for right, wrong in table(name).items():
        found.setdefault(right.split(" ")[0], []).append((right, wrong))
    return found


def _of_phrases(name: str) -> Kind:
    def kind(text: Source, rng: random.Random) -> Iterable[Edit]:
        phrases = _phrases(name)
        for token in text.tokens:
            for right, wrong in phrases.get(token.word.lower(), ()):
                end = token.start + len(right)
                whole = not text.lower[end : end + 1].isalnum() and text.lower[end : end + 1] != "'"
                if whole and text.lower.startswith(right, token.start):
                    put = _cased(token.word, rng.choice(wrong))
                    yield Edit(token.start, end, put)

    return kind


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_ADVERB = r"(?:already |just |never |ever |always |not |also |still |finally |even |all |both )?"
_PRONOUN = r"(?:i|you|he|she|it|we|they|anyone|anybody|someone|somebody)"
_HAVE = r"\b(?:have|has|had|haven't|hasn't|hadn't|having|i've|you've|we've|they've)"
_AFTER_HAVE = _pattern(rf"{_HAVE} (?:{_PRONOUN} )?{_ADVERB}(\w+)\b")
_AFTER_DID = _pattern(rf"\b(?:didn't|did {_PRONOUN}|did not) {_ADVERB}(\w+)\b")
_AFTER_MODAL = _pattern(r"\b(?:will|can|can't|could|should|must|i'll|we'll|you'll) (\w+)\b")
_SUBJECT_AND_PAST = _pattern(rf"\b{_PRONOUN} {_ADVERB}(\w+)\b")
_AFTER_HE = _pattern(r"\b(?:he|she|it|everyone|everybody|nobody|somebody|someone) (\w+s)\b")
_AFTER_THEY = _pattern(r"(?<!did )(?<!let )(?<!make )(?<!makes )\b(?:we|they) (\w+)\b(?!')")
_SWAPS = [
    (_pattern(rf"(?<!if )(?<!wish )\b(?:{before}) ({right})\b(?!')"), wrong)
    for before, right, wrong in (
        ("he|she|it|that|this|everyone|nobody", "doesn't", "don't"),
        ("i|you|we|they", "don't", "doesn't"),
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
    (_pattern(rf"\b({right})(?= (?:{behind})\b)"), wrong)
    for right, behind, wrong in (
        ("does", "he|she|it|anyone|anybody|this|that|your (?:mum|mom|dad|sister|brother)", "do"),
        ("do", "you|we|they|i", "does"),
        ("were", "you|we|they", "was"),
        ("are", "these|those", "is"),
        ("have", "you|we|they", "has"),
        ("has", "he|she|it|anyone|anybody", "have"),
    )
]
_FORWARD = _pattern(r"\bforward to (\w{2,}ing)\b")
_NEGATED = _pattern(r"n't (?:\w+ )?(any)\b(?! (?:of|more|longer|other))")
_COMPARED = _pattern(
    r"(?<!more )(?<!the )\b(better|bigger|easier|cheaper|faster|older|younger|warmer|colder|"
    r"quicker|taller|smaller|stronger|happier|nicer|quieter|louder|heavier|cleaner|safer) than\b"
)
_LASTED = _pattern(
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
    s_of_base = {base: _with_s(base) for base in bases}
    return _Verbs(
        {base: past for base, past, _, _ in rows if past != base},
        {part: past for _, past, part, _ in rows if past != part},
        {past: wrong for base, past, _, wrong in rows if past != base},
        {with_s: base for base, with_s in s_of_base.items()},
        s_of_base,
    )


def _with_s(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x", "o")) else "s")


def _looked_up(text: Source, pattern: re.Pattern[str], forms: dict[str, str]) -> Iterable[Edit]:
    """Edits of the group of each match, if ``forms`` has a wrong form for it."""
    for match in pattern.finditer(text.text):
        wrong = forms.get(match[1].lower())
        if wrong is not None:
            yield Edit(*match.span(1), _cased(match[1], wrong))


def _swapped(text: Source, swaps: list[tuple[re.Pattern[str], str]]) -> Iterable[Edit]:
    for pattern, wrong in swaps:
        for match in pattern.finditer(text.text):
            yield Edit(*match.span(1), _cased(match[1], wrong))


def _wrong_verb(text: Source, rng: random.Random) -> Iterable[Edit]:
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


_COUNTED = _pattern(
    r"(?:\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|"
    r"forty|fifty|several|both|many)|(?<![\d.,:$£€-])(?:[2-9]|[1-9]\d{1,2})) ([a-z]{4,}s)\b(?!['-])"
)
_ONE_OF = _pattern(r"\bone of (?:the|my|our|your|his|her|their|these|those) ([a-z]{4,}s)\b(?!')")
_EACH = _pattern(r"\b(?:every|each) ([a-z]{3,})\b(?!['-])")
_NOT_COUNTED = frozenset("one other single last time way so has is was that".split())
_AGREEMENTS = [
    (_pattern(pattern), wrong)
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


def _singular(plural: str) -> str | None:
    """The singular of a plural, ``None`` if the vocabulary has none."""
    ends = [(plural[:-3] + "y", plural.endswith("ies")), (plural[:-1], True)]
    ends.insert(1, (plural[:-2], plural.endswith(("ches", "shes", "xes", "sses", "oes"))))
    found = (word for word, fits in ends if fits and len(word) > 2 and not word.endswith("s"))
    return next((word for word in found if word in vocabulary()), None)


def _disagreeing(text: Source, rng: random.Random) -> Iterable[Edit]:
    for pattern in (_COUNTED, _ONE_OF):
        for match in pattern.finditer(text.text):
            singular = _singular(match[1].lower()) if match[1].islower() else None
            if singular:
                yield Edit(*match.span(1), singular)
    for match in _EACH.finditer(text.text):
        plural = _with_s(match[1])
        if match[1] not in _NOT_COUNTED and match[1].islower() and plural in vocabulary():
            yield Edit(*match.span(1), plural)
    yield from _swapped(text, _AGREEMENTS)


_CONTRACTION = _pattern(r"\b\w+(?:n't|'(?:m|re|ve|ll|d))\b|\b(?:that|there|here|what|who|where|"
                        r"it|he|she|let|how|everyone|everybody|somebody|nobody)'s\b")  # fmt: skip
_OWNED = re.compile(
    r"\b[A-Z][a-z]+[^\Ws]'s\b|\b(?:mum|mom|dad|mother|father|sister|brother|today|tomorrow|"
    r"yesterday|tonight|grandma|grandpa|everyone|someone|nobody)'s\b"
    r"|(?<=\b[Aa] )[a-z]+[^\Ws]'s\b"
)
_PLURAL = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|twelve|several|many|these|those|both|"
    r"fresh|more|some|\d+) ([a-z]{3,}s)(?= (?:are|were|have|for|in|on|at|from|and|to)\b|[.,?!])"
    r"|\b[Tt]he ([a-z]{3,}s)(?= (?:are|were|have)\b)"
)


def _without_apostrophe(text: Source, rng: random.Random) -> Iterable[Edit]:
    for match in _CONTRACTION.finditer(text.text):
        yield Edit(*match.span(), match[0].replace("'", ""))
    for match in _OWNED.finditer(text.text):
        word = match[0]
        # "Queues massive" could be more than one queue
        if not word[0].isupper() or word.lower().removesuffix("'s") not in vocabulary():
            yield Edit(*match.span(), word.replace("'", ""))


def _misplaced_apostrophe(text: Source, rng: random.Random) -> Iterable[Edit]:
    yield from _without_apostrophe(text, rng)
    for match in _CONTRACTION.finditer(text.text):
        if rng.random() < 0.3:
            word, at = match[0], match[0].index("'")
            moved = word[: at - 1] + "'" + word[at - 1] + word[at + 1 :]
            wrongs = [moved if word.endswith("n't") else word.replace("'", " ")]
            wrongs += [word.replace("'", ";"), word.replace("'", "''")]
            yield Edit(*match.span(), rng.choice(wrongs))
    for match in _PLURAL.finditer(text.text):
        group = match.lastindex or 0
        if _singular(match[group]):
            yield Edit(*match.span(group), match[group][:-1] + "'s")


def _lowered(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Capitals that a reader puts back: of sentences, of "I", of names that are no other word."""
    for token in text.tokens:
        word, lower = token.word, token.word.lower()
        plain = word[1:].islower() or lower in ("i", "i'm", "i've", "i'll", "i'd", "a")
        if word[0].isupper() and plain:
            own = lower.removesuffix("'s") not in vocabulary()
            if token.starts or own or lower[:2] in ("i", "i'"):
                yield Edit(token.start, token.end, lower)


_NOUN = re.compile(
    r"\b(?:the|a|an|my|our|your|his|her|their|this) ([a-z]{4,})\b"
    r"(?=[.,?!]| (?:is|was|are|were|and|or|in|on|at|for|of|to|from|with|by)\b)"
)


def _wrong_capital(text: Source, rng: random.Random) -> Iterable[Edit]:
    lowered = list(_lowered(text, rng))
    yield from lowered
    yield from (
        edit for edit in lowered if text.text[edit.start : edit.end] in _DAYS or edit.put == "i"
    )
    nouns = list(_NOUN.finditer(text.text))
    for match in rng.sample(nouns, min(1, len(nouns))):
        yield Edit(*match.span(1), match[1].capitalize())
    for token in text.tokens[:1]:
        if token.common and token.word[0].isupper() and token.word.isalpha():
            yield Edit(token.start, token.end, token.word[:2].upper() + token.word[2:])


_OPENING = re.compile(
    r"(?:Hi|Hello|Hey|Dear|Good morning|Morning|Good evening)"
    r"(?: (?:Mrs?|Ms|Dr)\.?)?(?: [A-Z]\w+)+(,) |"
    r"(?:^|(?<=[.?!] ))(?:Yes|No|However|Unfortunately)(,) (?!thank|please|way|problem)"
)
_TAG = re.compile(
    r"(,) (?=(?:is|are|was|were|do|does|did|have|has|can|could|will|would|should)(?:n't)? "
    r"(?:i|I|you|he|she|it|we|they|there)\?)"
)
_LIST = re.compile(r"(?<=[a-z])(,) (?=[a-z]+,? (?:and|or) [a-z]+[.,?!])")
_ASKED = _pattern(
    r"(?:^|(?<=[.?!] ))(?:who|what|when|where|why|how|which|whose|is|are|was|were|do|does|did|have|"
    r"has|can|could|will|would|should|isn't|aren't|don't|doesn't|didn't|haven't|hasn't|can't|"
    r"couldn't|won't|shall|may)\b[^.?!]*(\?)(?=$| )"
)
_STOP = re.compile(r"(?<=[a-z])(\.)(?= [A-Z])")
_MARK = re.compile(r"(?<=[a-z])([,.?])(?= |$)")
_SPACES = 0.4  # of the draws; they fit nearly everywhere
_SPACE = re.compile(r"(?<=[a-z,]) (?=[a-z])")


def _wrong_mark(text: Source, rng: random.Random) -> Iterable[Edit]:
    for match in _ASKED.finditer(text.text):
        for put in ("", ".", ""):
            yield Edit(*match.span(1), put)
    yield from _no_full_stop(text, rng)
    for pattern in (_OPENING, _TAG, _LIST):
        for match in pattern.finditer(text.text):
            yield Edit(*match.span(match.lastindex or 0), "")
    for match in _STOP.finditer(text.text):
        if not _ABBREVIATION.search(text.text[: match.start()]):
            yield Edit(*match.span(1), "")
    if rng.random() < _SPACES:
        yield from _wrong_space_at_mark(text, rng)


def _wrong_space_at_mark(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Spaces too many and too few at marks or between words, and marks that stand twice."""
    marks = list(_MARK.finditer(text.text))
    for match in rng.sample(marks, min(1, len(marks))):
        if _ABBREVIATION.search(text.text[: match.start()]):
            continue
        if match[1] == ",":
            yield Edit(match.start(), match.end() + 1, rng.choice([" ,", ",", " , ", ",, "]))
        elif match.end() < len(text.text):
            yield Edit(match.start(), match.end() + 1, rng.choice([match[1], f" {match[1]} "]))
        else:
            yield Edit(*match.span(), rng.choice([f" {match[1]}", match[1] * 2]))
    spaces = list(_SPACE.finditer(text.text))
    for match in rng.sample(spaces, min(1, len(spaces))):
        yield Edit(*match.span(), "  ")


def _no_full_stop(text: Source, rng: random.Random) -> Iterable[Edit]:
    body = text.text[:-1]
    ends = text.text.endswith(".") and body.count(" ") > 1 and body[-1].isalnum()
    if ends and not _ABBREVIATION.search(body):
        yield Edit(len(body), len(body) + 1, "")


_TO_VERB = _pattern(
    r"\b(?:want|wants|wanted|need|needs|needed|have|has|had|going|trying|try|tried|forgot|able|used|"
    r"supposed|decided|plan|planning|promised|ought|hoping|hope|would like|you like|remember|"
    r"offered|agreed|expect|due|ready|asked (?:me|him|her|us|them|you)|"
    r"how|where|what)( to) [a-z]{2,}"
)
_missing_phrase = _of_phrases("missing")


def _missing(text: Source, rng: random.Random) -> Iterable[Edit]:
    yield from _missing_phrase(text, rng)
    for match in _TO_VERB.finditer(text.text):
        following = text.lower[match.end(1) + 1 : match.end()]
        if following not in (
            "the",
            "my",
            "our",
            "your",
            "his",
            "her",
            "their",
            "this",
            "that",
            "me",
        ):
            yield Edit(*match.span(1), "")


_DAY_PREPOSITION = re.compile(r"\b([Oo]n) (?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?\b")
_MONTH_PREPOSITION = re.compile(
    r"\b([Ii]n) (?:January|February|March|April|June|July|August|September|October|November|"
    r"December)(?! \d)\b"
)
_preposition_phrase = _of_phrases("prepositions")


def _wrong_preposition(text: Source, rng: random.Random) -> Iterable[Edit]:
    yield from _preposition_phrase(text, rng)
    for pattern, wrong in ((_DAY_PREPOSITION, ("in", "at")), (_MONTH_PREPOSITION, ("on", "at"))):
        for match in pattern.finditer(text.text):
            yield Edit(*match.span(1), _cased(match[1], rng.choice(wrong)))


_JOINED = re.compile(r"(?<=\b)(?:of|in|to|for|with|on|at|is|and) (?:the|a|my|it|you)\b")
_spacing_phrase = _of_phrases("spacing")


def _wrong_space(text: Source, rng: random.Random) -> Iterable[Edit]:
    yield from _spacing_phrase(text, rng)
    for match in _JOINED.finditer(text.text):
        if rng.random() < 0.3:
            first, second = match[0].split(" ")
            wrong = rng.choice([first + second, f"{first}{second[0]} {second[1:]}"])
            if second != "a" and wrong not in vocabulary() and wrong != "int he":
                yield Edit(*match.span(), wrong)


_DOUBLED = frozenset(
    """the a an to of in on at for with and or but is are was were be we you they he she it my your
    our this can will would from about when if as by not have has""".split()
)


def _doubled(text: Source, rng: random.Random) -> Iterable[Edit]:
    for token in text.tokens:
        if token.word in _DOUBLED:
            yield Edit(token.start, token.end, f"{token.word} {token.word}")
    words = [token for token in text.tokens if token.common and len(token.word) > 4]
    for token in rng.sample(words, min(1, len(words))):
        if token.word.islower() and token.word not in ("really", "never", "again"):
            yield Edit(token.start, token.end, f"{token.word} {token.word}")


KINDS: dict[str, Kind] = {
    "misspelling": _misspelt,
    "slip": _slipped,
    "confusion": _confused,
    "verb": _wrong_verb,
    "agreement": _disagreeing,
    "apostrophe": _misplaced_apostrophe,
    "capital": _wrong_capital,
    "mark": _wrong_mark,
    "missing": _missing,
    "preposition": _wrong_preposition,
    "space": _wrong_space,
    "doubled": _doubled,
}
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
_MANY = 5


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
    if rng.random() < 0.05:
        count = rng.randint(_MANY, _MANY + 2)
    else:
        count = rng.choices((1, 2, 3, 4), (40, 32, 20, 8))[0]
    return max(1, min(count, words // 4))


def _be_sloppy(made: _Made, rng: random.Random) -> None:
    """No capitals, apostrophes and last mark, and at times the short forms of text messages."""
    text = made.text
    if rng.random() < 0.25:
        shorthand = table("shorthand")
        for token in text.tokens:
            short = shorthand.get(token.word.lower())
            if short and rng.random() < 0.7:
                made.add(Edit(token.start, token.end, rng.choice(short)), room=0)
    for edit in _without_apostrophe(text, rng):
        made.add(Edit(edit.start, edit.end, edit.put.lower()), room=0)
    for edit in _lowered(text, rng):
        made.add(edit, room=0)
    for match in _ASKED.finditer(text.text):
        if match.end() == len(text.text):
            made.add(Edit(*match.span(1), ""), room=0)
    for edit in _no_full_stop(text, rng):
        made.add(edit, room=0)
