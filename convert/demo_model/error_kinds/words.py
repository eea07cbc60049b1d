"""Wrong words: misspelt, mistyped, confused, written together or apart, written twice."""

import random
import re
from collections.abc import Iterable
from functools import cache

from .source import Edit, Source, cased, names, phrases_of, table, vocabulary

_FREQUENT = 150  # times in the written text: words beyond are taken the more seldom


def _taken(word: str, rng: random.Random) -> bool:
    """Decide whether to take a word; frequent ones leave the others a chance."""
    return rng.random() * vocabulary()[word] < _FREQUENT


def misspelt(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Words written as people who do not know better write them."""
    misspellings = table("misspellings")
    for token in text.tokens:
        if token.common or (token.word[0].isupper() and token.word in misspellings):
            wrong = misspellings.get(token.word) or misspellings.get(token.word.lower())
            if wrong and _taken(token.word.lower(), rng):
                yield Edit(token.start, token.end, cased(token.word, rng.choice(wrong)))


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


def _one_apart(wrong: str, word: str) -> bool:
    """Tell whether a letter swapped, dropped, added or exchanged makes one word of the other."""
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
    """Tell whether ``wrong`` is no word and no other word is as near to it as ``right`` is."""
    if wrong in vocabulary() or wrong in names():
        return False
    near = {word for rest in (wrong, *_shorter(wrong)) for word in _neighbourhood().get(rest, ())}
    return not any(word != right and _one_apart(wrong, word) for word in near)


def slipped(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Slips of the keys in some words, where no other word could be meant."""
    words = [token for token in text.tokens if token.common and len(token.word) > 3]
    for token in rng.sample(words, min(4, len(words))):
        right = token.word.lower()
        wrong = _slip(right, rng) if right.isalpha() and right.isascii() else right
        if wrong != right and _repairable(wrong, right):
            yield Edit(token.start, token.end, cased(token.word, wrong))


def confused(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Words that sound alike or look alike, one for the other."""
    confusions = table("confusions")
    for token in text.tokens:
        if token.common or token.starts:
            wrong = confusions.get(token.word.lower())
            if wrong and _taken(token.word.lower(), rng):
                yield Edit(token.start, token.end, cased(token.word, rng.choice(wrong)))


_JOINED = re.compile(r"\b(?:of|in|to|for|with|on|at|is|and) (?:the|my|it|you)\b")
_spacing_phrase = phrases_of("spacing")


def wrong_space(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Words written together, apart, or parted at the wrong letter."""
    yield from _spacing_phrase(text, rng)
    for match in _JOINED.finditer(text.text):
        if rng.random() < 0.3:
            first, second = match[0].split(" ")
            if first + second not in vocabulary():
                yield Edit(*match.span(), first + second)
            if second == "the":
                yield Edit(*match.span(), f"{first}t he")


_DOUBLED = frozenset(
    """the a an to of in on at for with and or but is are was were be we you they he she it my your
    our this can will would from about when if as by not have has""".split()
)


def doubled(text: Source, rng: random.Random) -> Iterable[Edit]:
    """Words that stand twice: small ones, and one of the others."""
    for token in text.tokens:
        if token.word in _DOUBLED:
            yield Edit(token.start, token.end, f"{token.word} {token.word}")
    words = [token for token in text.tokens if token.common and len(token.word) > 4]
    for token in rng.sample(words, min(1, len(words))):
        if token.word.islower() and token.word not in ("really", "never", "again"):
            yield Edit(token.start, token.end, f"{token.word} {token.word}")
