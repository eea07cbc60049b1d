"""Errors that people make, put into text that is right as it stands, which is what a proofreader
learns to write.

An error is one that a reader repairs with certainty, so names, numbers, quotations and addresses
stay. ``text/errors`` has, by kind of error, a right form and its wrong forms a line, and
``patterns.tsv``: a kind of error, a pattern, and what its group is written as.
"""

import random
import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "text" / "errors"
_STAYS = re.compile(
    r'"[^"]*"|“[^”]*”|(?<!\w)\'[^\']+\'(?!\w)'  # quotations
    r"|\S*[\d_@/#\\]\S*(?<![.,?!;:])|[^\s.]+(?:\.[^\s.]+)+"  # numbers, codes and addresses
)
_COUNTS, _COUNT_WEIGHTS = (1, 2, 3, 4, 5), (40, 30, 19, 8, 3)
_APART = 2
"""Characters between two errors."""

KINDS = {
    "misspelling": 24, "slip": 12, "confusion": 12, "verb": 10, "agreement": 7, "apostrophe": 10,
    "capital": 8, "mark": 10, "missing": 5, "preposition": 3, "spacing": 4, "doubled": 4,
}  # fmt: skip
"""How often each kind of error is made."""
_LISTED = "misspelling", "confusion", "missing", "preposition", "spacing"
_HAVE = r"\b(?:have|has|had|haven't|hasn't|hadn't|i've|you've|we've|they've) "
_PRONOUN = r"\b(?:i|you|he|she|it|we|they) "
_CAPITAL = r"(?:^|(?<=[.?!] ))[A-Z](?=[a-z'])|\bI\b|\b[A-Z](?=[a-z]+day\b)"
_SMALL = r"\b(?:the|a|to|of|in|on|at|for|and|is|we|you|that)\b(?!')"

Edit = tuple[int, int, str]
"""Begin and end of a place in a text, and what is written there instead."""


def with_errors(text: str, rng: random.Random) -> str:
    """Put errors into a text, mostly one to three, at most one for each four words."""
    stays = [match.span() for match in _STAYS.finditer(text)]
    count = max(1, min(rng.choices(_COUNTS, _COUNT_WEIGHTS)[0], text.count(" ") // 4))
    made, weights = list[Edit](), dict(KINDS)
    while weights and len(made) < count:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        edits = [
            (begin, end, put)
            for begin, end, put in edits_of(kind, text, rng)
            if not any(begin < stop and start < end for start, stop in stays)
            and not any(b - _APART < end and begin < e + _APART for b, e, _ in made)
        ]
        if edits:
            made.append(rng.choice(edits))
            weights[kind] = max(1, weights[kind] // 2)
        else:
            del weights[kind]
    for begin, end, put in sorted(made, reverse=True):
        text = text[:begin] + put + text[end:]
    return text


def edits_of(kind: str, text: str, rng: random.Random) -> list[Edit]:
    """The errors of a kind that a text could have; where there are several wrong forms, one."""
    if kind == "capital":
        return [(*match.span(), match[0].lower()) for match in re.finditer(_CAPITAL, text)]
    if kind == "doubled":
        return [(*match.span(), f"{match[0]} {match[0]}") for match in re.finditer(_SMALL, text)]
    if kind == "slip":
        return _slips(text, rng)
    patterns = [(pattern, wrong) for name, pattern, wrong in _rows("patterns") if name == kind]
    if kind == "verb":
        for _, past, participle, made_up in _rows("irregular"):
            wrong = past if past != participle else made_up
            patterns.append((rf"{_HAVE}({participle})\b", wrong))
            wrong = rng.choice((participle, made_up)) if past != participle else made_up
            patterns.append((rf"{_PRONOUN}({past})\b", wrong))
    for right, *wrong_forms in _rows(kind) if kind in _LISTED else ():
        if right in text.lower() and right not in _spelt_in_two_ways():
            patterns.append((rf"\b({re.escape(right)})\b(?!')", rng.choice(wrong_forms)))
    return [
        (*match.span(1), _cased(match[1], wrong))
        for pattern, wrong in patterns
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


def _slips(text: str, rng: random.Random) -> list[Edit]:
    """Two letters swapped, one dropped or one doubled, in long words in small letters."""
    edits = []
    for match in re.finditer(r"(?<![\w'])[a-z]{6,}(?![\w'])", text):
        at = rng.randrange(match.start() + 1, match.end() - 2)
        first, second = text[at], text[at + 1]
        if first != second:
            edits.append((at, at + 2, rng.choice((second + first, second, first + first + second))))
    return edits


@cache
def _rows(name: str) -> list[list[str]]:
    lines = (_FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


@cache
def _spelt_in_two_ways() -> frozenset[str]:
    """Words of whose two spellings neither is wrong."""
    return frozenset(word for row in _rows("variants") for word in row)


def _cased(right: str, wrong: str) -> str:
    """``wrong`` with a capital where ``right`` has one."""
    return wrong[:1].upper() + wrong[1:] if right[0].isupper() else wrong
