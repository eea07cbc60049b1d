"""Wrong signs: apostrophes, capitals, and marks with their spaces."""

import random
import re
from collections.abc import Iterable

from .source import ABBREVIATION, Edit, Source, pattern_of, singular_of, vocabulary

_DAYS = frozenset(
    """Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February April June July
    September October November December""".split()
)


_CONTRACTION = pattern_of(r"\b\w+(?:n't|'(?:m|re|ve|ll|d))\b|\b(?:that|there|here|what|who|where|"
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


def without_apostrophe(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Contractions and owners without their apostrophe."""
    for match in _CONTRACTION.finditer(text.text):
        yield Edit(*match.span(), match[0].replace("'", ""))
    for match in _OWNED.finditer(text.text):
        word = match[0]
        # "Queues massive" could be more than one queue
        if not word[0].isupper() or word.lower().removesuffix("'s") not in vocabulary():
            yield Edit(*match.span(), word.replace("'", ""))


def misplaced_apostrophe(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Apostrophes missing, at the wrong place, mistyped, or in a plural."""
    yield from without_apostrophe(text, rng)
    for match in _CONTRACTION.finditer(text.text):
        if rng.random() < 0.3:
            word, at = match[0], match[0].index("'")
            moved = word[: at - 1] + "'" + word[at - 1] + word[at + 1 :]
            wrongs = [moved if word.endswith("n't") else word.replace("'", " ")]
            wrongs += [word.replace("'", ";"), word.replace("'", "''")]
            yield Edit(*match.span(), rng.choice(wrongs))
    for match in _PLURAL.finditer(text.text):
        group = match.lastindex or 0
        if singular_of(match[group]):
            yield Edit(*match.span(group), match[group][:-1] + "'s")


def lowered(text: Source, rng: random.Random) -> Iterable[Edit]:
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


def wrong_capital(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Capitals missing, and capitals where none belong."""
    small = list(lowered(text, rng))
    yield from small
    for edit in small:  # the commonest stand here twice
        if edit.put == "i" or text.text[edit.start : edit.end] in _DAYS:
            yield edit
    nouns = list(_NOUN.finditer(text.text))
    for match in rng.sample(nouns, min(1, len(nouns))):
        yield Edit(*match.span(1), match[1].capitalize())
    for token in text.tokens[:1] if rng.random() < 0.4 else ():
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
ASKED = pattern_of(
    r"(?:^|(?<=[.?!] ))(?:who|what|when|where|why|how|which|whose|is|are|was|were|do|does|did|have|"
    r"has|can|could|will|would|should|isn't|aren't|don't|doesn't|didn't|haven't|hasn't|can't|"
    r"couldn't|won't|shall|may)\b[^.?!]*(\?)(?=$| )"
)
_STOP = re.compile(r"(?<=[a-z])(\.)(?= [A-Z])")
_MARK = re.compile(r"(?<=[a-z])([,.?])(?= |$)")
_SPACES = 0.25  # of the draws; they fit nearly everywhere
_SPACE = re.compile(r"(?<=[a-z,]) (?=[a-z])")


def wrong_mark(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Marks missing that the text cannot do without, and wrong spaces at marks."""
    for match in ASKED.finditer(text.text):
        for put in ("", ".", ""):
            yield Edit(*match.span(1), put)
    yield from no_full_stop(text, rng)
    for pattern in (_OPENING, _TAG, _LIST):
        for match in pattern.finditer(text.text):
            yield Edit(*match.span(match.lastindex or 0), "")
    for match in _STOP.finditer(text.text):
        if not ABBREVIATION.search(text.text[: match.start()]):
            yield Edit(*match.span(1), "")
    if rng.random() < _SPACES:
        yield from _wrong_space_at_mark(text, rng)


def _wrong_space_at_mark(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Spaces too many and too few at marks or between words, and marks that stand twice."""
    marks = list(_MARK.finditer(text.text))
    for match in rng.sample(marks, min(1, len(marks))):
        if ABBREVIATION.search(text.text[: match.start()]):
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


def no_full_stop(text: Source, rng: random.Random) -> Iterable[Edit]:
    """The full stop at the end of the text missing, if it has three words or more."""
    body = text.text[:-1]
    ends = text.text.endswith(".") and body.count(" ") > 1 and body[-1].isalnum()
    if ends and not ABBREVIATION.search(body):
        yield Edit(len(body), len(body) + 1, "")
