"""A right text as the kinds of errors see it, and the written lists of wrong forms."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property

from .. import written

FOLDER = written.TEXT / "errors"

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_KEPT = re.compile(
    r'"[^"]*"|“[^”]*”|(?<!\w)\'[^\']+\'(?!\w)'  # quotations
    r"|\S*[\d_@/#\\]\S*(?<![.,?!;:])|[^\s.]+(?:\.[^\s.]+)+"  # numbers, codes and addresses
)
_SENTENCE_START = re.compile(
    r'(?:^|(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)[.?!]\s+|\n)["“(]*$'
)
ABBREVIATION = re.compile(r"\b(?:Mrs?|Ms|Dr|St|\w\.\w|[A-Z])$")


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
    """Count of each lower-case word in the answers of the written text."""
    texts = (line.answer for line in written.read_all() if line.kind != "tables")
    return Counter(word for text in texts for word in WORD.findall(text) if word.islower())


@cache
def names() -> frozenset[str]:
    """Words, lower-cased, that the written text capitalizes within sentences.

    Hardly any of them is a common word that starts a title ("Your Highness") now and then.
    """
    inside = re.compile(r"(?<=[a-z,] )[A-Z][^\W\d_]+")
    texts = (line.answer for line in written.read_all() if line.kind != "tables")
    found = Counter(word.lower() for text in texts for word in inside.findall(text))
    return frozenset(word for word, count in found.items() if 50 * count > vocabulary()[word])


class Source:
    """A text and its words.

    Attributes:
        text: as it stands.
        lower: the same in small letters.
        kept: spans that stay as they are: quotations, numbers, codes, addresses.
        settled: words, in small letters, that are not to be misspelt.
    """

    def __init__(self, text: str, settled: frozenset[str]) -> None:
        self.text = text
        self.lower = text.lower()
        self.kept = [match.span() for match in _KEPT.finditer(text)]
        self.settled = settled

    @cached_property
    def tokens(self) -> list[Token]:
        found = []
        for match in WORD.finditer(self.text):
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
        known = word[1:].islower() and lower in vocabulary() and lower not in names()
        return starts and known and lower not in self.settled

    def keeps(self, start: int, end: int) -> bool:
        """Tell whether part of a span is to stay as it is."""
        return any(start < stop and begin < end for begin, stop in self.kept)


Kind = Callable[[Source, random.Random], Iterable[Edit]]
"""The errors of a kind that a text could have; where several are alike, some of them."""


def cased(right: str, wrong: str) -> str:
    """``wrong`` with a capital if ``right`` has one."""
    return wrong[0].upper() + wrong[1:] if right[0].isupper() else wrong


@cache
def _phrases(name: str) -> dict[str, list[tuple[str, list[str]]]]:
    """The lines of a data file of phrases by their first words."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for right, wrong in table(name).items():
        found.setdefault(right.split(" ")[0], []).append((right, wrong))
    return found


def phrases_of(name: str) -> Kind:
    """The kind of errors that a data file of phrases lists."""

    def kind(text: Source, rng: random.Random) -> Iterable[Edit]:
        phrases = _phrases(name)
        for token in text.tokens:
            for right, wrong in phrases.get(token.word.lower(), ()):
                end = token.start + len(right)
                whole = not text.lower[end : end + 1].isalnum() and text.lower[end : end + 1] != "'"
                if whole and text.lower.startswith(right, token.start):
                    put = cased(token.word, rng.choice(wrong))
                    yield Edit(token.start, end, put)

    return kind


def pattern_of(pattern: str) -> re.Pattern[str]:
    """A pattern that takes capitals and small letters for the same."""
    return re.compile(pattern, re.IGNORECASE)


def with_s(base: str) -> str:
    """A noun or verb with the ending -s, spelt as it should be."""
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x", "o")) else "s")


def singular_of(plural: str) -> str | None:
    """The singular of a plural, ``None`` if the vocabulary has none."""
    ends = [(plural[:-3] + "y", plural.endswith("ies")), (plural[:-1], True)]
    ends.insert(1, (plural[:-2], plural.endswith(("ches", "shes", "xes", "sses", "oes"))))
    found = (word for word, fits in ends if fits and len(word) > 2 and not word.endswith("s"))
    return next((word for word in found if word in vocabulary()), None)
