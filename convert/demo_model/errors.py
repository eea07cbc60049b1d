"""Errors that people make, put into text that is right as it stands.

For training a proofreader: the right text is the target. An error is one that a reader repairs with
certainty, so names, numbers, quotations and addresses stay. What people misspell and confuse is
written in ``text/errors``, a right form and its wrong forms a line.
"""

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

Edit = tuple[int, int, str]
"""Begin and end of a place in a text, and what is written there instead."""

_FOLDER = Path(__file__).parent / "text" / "errors"
_STAYS = re.compile(
    r'"[^"]*"|“[^”]*”|(?<!\w)\'[^\']+\'(?!\w)'  # quotations
    r"|\S*[\d_@/#\\]\S*(?<![.,?!;:])|[^\s.]+(?:\.[^\s.]+)+"  # numbers, codes and addresses
)
_COUNTS, _COUNT_WEIGHTS = (1, 2, 3, 4, 5), (40, 30, 19, 8, 3)
_APART = 2
"""Characters between two errors."""


def with_errors(text: str, rng: random.Random) -> str:
    """Put errors into a text, mostly one to three, at most one for each four words.

    Returns:
        The text with errors; the text itself if there is nothing in it that could be wrong.
    """
    stays = [match.span() for match in _STAYS.finditer(text)]
    count = max(1, min(rng.choices(_COUNTS, _COUNT_WEIGHTS)[0], text.count(" ") // 4))
    made: list[Edit] = []
    weights = {name: weight for name, (weight, _) in KINDS.items()}
    while weights and len(made) < count:
        name = rng.choices(list(weights), list(weights.values()))[0]
        edits = [
            (begin, end, put)
            for begin, end, put in edits_of(name, text, rng)
            if not any(begin < stop and start < end for start, stop in stays)
            and not any(b - _APART < end and begin < e + _APART for b, e, _ in made)
        ]
        if edits:
            made.append(rng.choice(edits))
            weights[name] = max(1, weights[name] // 2)
        else:
            del weights[name]
    for begin, end, put in sorted(made, reverse=True):
        text = text[:begin] + put + text[end:]
    return text


def edits_of(name: str, text: str, rng: random.Random) -> list[Edit]:
    """The errors of a kind that a text could have; where there are several wrong forms, one."""
    return KINDS[name][1](text, rng)


Kind = Callable[[str, random.Random], list[Edit]]


@cache
def _table(name: str) -> dict[str, list[str]]:
    """Right forms, and for each its wrong ones."""
    lines = (_FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return {right: wrong for right, *wrong in (line.split("\t") for line in lines)}


@cache
def _spelt_otherwise() -> frozenset[str]:
    """Words that are spelt in two ways, of which neither is wrong."""
    return frozenset(word for us, uk in _table("variants").items() for word in (us, *uk))


def _cased(right: str, wrong: str) -> str:
    """``wrong`` with a capital where ``right`` has one."""
    return wrong[:1].upper() + wrong[1:] if right[0].isupper() else wrong


def _listed(name: str) -> Kind:
    """The errors of a file of right and wrong forms."""

    def kind(text: str, rng: random.Random) -> list[Edit]:
        forms = {right: wrong for right, wrong in _table(name).items() if right in text.lower()}
        edits = []
        for right, wrong in forms.items():
            for match in re.finditer(rf"\b{re.escape(right)}\b(?!')", text, re.IGNORECASE):
                if right not in _spelt_otherwise():
                    edits.append((*match.span(), _cased(match[0], rng.choice(wrong))))
        return edits

    return kind


def _patterns(*pairs: tuple[str, str]) -> Kind:
    """The errors that patterns find: what their group matches becomes the wrong form."""
    compiled = [(re.compile(pattern, re.IGNORECASE), wrong) for pattern, wrong in pairs]

    def kind(text: str, rng: random.Random) -> list[Edit]:
        return [
            (*match.span(1), _cased(match[1], wrong))
            for pattern, wrong in compiled
            for match in pattern.finditer(text)
        ]

    return kind


_HAVE = r"\b(?:have|has|had|haven't|hasn't|hadn't|i've|you've|we've|they've) "
_PRONOUN = r"\b(?:i|you|he|she|it|we|they) "


def _verbs(text: str, rng: random.Random) -> list[Edit]:
    """A past for a participle, a participle for a past, a past that people make up."""
    edits = []
    for past, participle, made_up in _table("irregular").values():
        wrong = past if past != participle else made_up
        edits += _patterns((rf"{_HAVE}({participle})\b", wrong))(text, rng)
        wrong = rng.choice((participle, made_up)) if past != participle else made_up
        edits += _patterns((rf"{_PRONOUN}({past})\b", wrong))(text, rng)
    return edits + _agreeing(text, rng)


_agreeing = _patterns(
    (r"\b(?:he|she|it|that|this) (doesn't)", "don't"),
    (r"\b(?:we|they) (don't)", "doesn't"),
    (r"\b(?:we|you|they) (were)\b", "was"),
    (r"\b(?:i|he|she) (was)\b", "were"),
    (r"\b(?:we|you|they) (are)\b", "is"),
    (r"\b(?:he|she|it) (has)\b", "have"),
    (r"\b(?:i|we|you|they) (have)\b", "has"),
)


def _capitals(text: str, rng: random.Random) -> list[Edit]:
    """No capital where a sentence, a weekday, a month or "I" has one."""
    places = re.finditer(r"(?:^|(?<=[.?!] ))[A-Z](?=[a-z'])|\bI\b|\b[A-Z](?=[a-z]+day\b)", text)
    return [(*match.span(), match[0].lower()) for match in places]


def _slips(text: str, rng: random.Random) -> list[Edit]:
    """Two letters swapped, one dropped or one doubled, in long words in small letters."""
    edits = []
    for match in re.finditer(r"(?<![\w'])[a-z]{6,}(?![\w'])", text):
        at = rng.randrange(match.start() + 1, match.end() - 2)
        first, second = text[at], text[at + 1]
        if first != second:
            edits.append((at, at + 2, rng.choice((second + first, second, first + first + second))))
    return edits


def _doubled(text: str, rng: random.Random) -> list[Edit]:
    """Small words that stand twice."""
    words = re.finditer(r"\b(?:the|a|to|of|in|on|at|for|and|is|we|you|that)\b(?!')", text)
    return [(*match.span(), f"{match[0]} {match[0]}") for match in words]


KINDS: dict[str, tuple[int, Kind]] = {
    "misspelling": (24, _listed("misspellings")),
    "slip": (12, _slips),
    "confusion": (12, _listed("confusions")),
    "verb": (10, _verbs),
    "agreement": (
        7,
        _patterns(
            (r"\b(an) (?=[aeiou])", "a"),
            (r"\b(?:two|three|four|five|six|several) [a-z]*[^s\W](s)\b", ""),
        ),
    ),
    "apostrophe": (
        10,
        _patterns(
            (r"n(')t\b", ""),
            (r"\w(')(?:s|re|ve|ll)\b", ""),
            (r"\b[a-z]{2,}[^s\W](s)\b(?= (?:are|were)\b)", "'s"),
        ),
    ),
    "capital": (8, _capitals),
    "mark": (
        10,
        _patterns(
            (r"[a-z](\?)(?= |$)", ""),
            (r"\w \w+ [a-z]+(\.)$", ""),
            (r"^(?:Hi|Hello|Hey|Dear)(?: [A-Z]\w+)+(,)", ""),
            (r"[a-z](,)(?= [a-z]+,? (?:and|or) )", ""),
            (r"[a-z](,) (?=[a-z])", " , "),
        ),
    ),
    "missing": (5, _listed("missing")),
    "preposition": (3, _listed("prepositions")),
    "space": (4, _listed("spacing")),
    "doubled": (4, _doubled),
}
"""Kinds of errors: how often, and those that a text could have."""
