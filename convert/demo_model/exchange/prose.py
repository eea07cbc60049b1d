"""Filling the places that ``finding`` found: new names, numbers, dates and things."""

import random
import re
from collections.abc import Callable
from functools import partial

from . import coining, numbers
from .finding import Found, Span
from .lists import MONTHS, NUMBER_WORDS, WEEKDAYS, entries, things

COINED = 1 / 3
"""Share of the names and things that are exchanged for words which exist nowhere, or rare ones."""

_SHARES = {
    "thing": 0.4,
    "colour": 0.5,
    "weekday": 0.6,
    "month": 0.6,
    "number": 0.75,
    "number_word": 0.6,
    "clock": 0.7,
}
_NAMES = 0.9  # of the others
_TRIES = 20
_PEOPLE = {
    *("sister", "brother", "doctor", "teacher", "neighbour", "plumber"),
    *("sisters", "brothers", "doctors", "teachers", "neighbours", "plumbers"),
}
"""Nouns of the groups of people, for which no word is coined."""

New = dict[tuple[str, str], str]
"""What stands in the place of a kind and key."""


def new_values(found: Found, rng: random.Random) -> New:
    """Draw what the keys of ``found`` are exchanged for; keys without an entry stay."""
    keys = {
        kind: names
        for kind, names in found.keys().items()
        if rng.random() < _SHARES.get(kind, _NAMES)
    }
    new: New = {}
    taken = {word.lower() for text in found.texts for word in re.findall(r"[^\W\d_]+", text)}
    for kind, names in keys.items():
        if kind in ("number", "number_word", "clock", "weekday", "month"):
            continue
        for name in names:
            word = _unused(partial(_word, kind, name, found, rng), taken)
            if word is not None:
                new[kind, name] = word
                taken |= {part.lower() for part in word.split()}
    if "number" in keys:
        drawn = numbers.others(found.largest, found.fixed_numbers, rng)
        new.update({("number", number): other for number, other in drawn.items()})
    if "clock" in keys:
        new.update(_clocks(keys["clock"], rng))
    orders = (("weekday", WEEKDAYS), ("month", MONTHS), ("number_word", NUMBER_WORDS[2:13]))
    for kind, order in orders:
        if kind in keys:
            old = sorted(keys[kind], key=order.index)
            chosen = sorted(rng.sample(order, len(old)), key=order.index)
            new.update({(kind, one): other for one, other in zip(old, chosen, strict=True)})
    return new


def _unused(draw: Callable[[], str], taken: set[str]) -> str | None:
    for _ in range(_TRIES):
        word = draw()
        if not taken & {part.lower() for part in re.findall(r"[^\W\d_]+", word)}:
            return word
    return None


def _word(kind: str, key: str, found: Found, rng: random.Random) -> str:
    if kind == "code":
        return coining.like_code(key, rng)
    if kind == "email":
        return coining.email(rng)
    coined = rng.random() < COINED
    if kind == "colour":
        return rng.choice(entries("colours"))
    if kind == "thing":
        group, plural = things()[key]
        if not coined or _PEOPLE & set(group):
            return rng.choice(group)
        word = coining.noun(rng)
        return coining.plural_form(word) if plural else word
    if kind == "speaker":
        coined = coined or found.genders
        return _capitalized(rng) if coined else rng.choice(entries(rng.choice(("women", "men"))))
    if kind == "name":
        if rng.random() < 0.5:
            return _capitalized(rng)
        return rng.choice(entries(rng.choice(("surnames", "surnames", "cities"))))
    if coined and not (kind in ("women", "men") and found.genders):
        return _capitalized(rng)
    return rng.choice(entries(kind))


def _capitalized(rng: random.Random) -> str:
    word = rng.choice(entries("rare_words")) if rng.random() < 0.15 else coining.coined(rng)
    return word.capitalize()


def _clocks(clocks: list[str], rng: random.Random) -> New:
    """Other times of the day, in the same order, with minutes as round as they were."""
    old = sorted(tuple(map(int, clock.split(":"))) for clock in clocks)
    for _ in range(_TRIES):
        drawn = []
        for hour, minute in old:
            low, high = (1, 12) if hour <= 12 else (13, 23)
            steps = (
                (0, 30)
                if minute % 30 == 0
                else (0, 15, 30, 45)
                if minute % 15 == 0
                else range(0, 60, 5)
            )
            drawn.append((rng.randint(low, high), rng.choice(steps)))
        if drawn == sorted(set(drawn)):
            return {
                ("clock", f"{hour}:{minute:02}"): f"{new_hour}:{new_minute:02}"
                for (hour, minute), (new_hour, new_minute) in zip(old, drawn, strict=True)
            }
    return {}


def filled(text: str, spans: list[Span], new: New) -> str:
    """``text`` with new values in its places, "a" and "an" as these want it."""
    parts, end = [], 0
    for span in spans:
        old = text[span.start : span.end]
        value = new.get((span.kind, span.key))
        if value is None:
            continue
        value = _in_form_of(value, old, span)
        bare = old[-1] == "s" and re.match(r"'(?!s\b)\W", text[span.end :]) is not None
        parts.append(_with_article(text[end : span.start], old, value))
        end = span.end
        suffix = re.match(r"(?:st|nd|rd|th)\b", text[end:]) if span.kind == "number" else None
        if suffix:
            value += _ordinal(value)
            end += 2
        parts.append(value)
        if bare and value[-1] != "s" and span.kind not in ("number", "clock"):
            parts.append("'s")  # "James' coat", but "Anna's coat"
            end += 1
    parts.append(text[end:])
    return "".join(parts)


def _in_form_of(value: str, old: str, span: Span) -> str:
    if span.kind == "number":
        comma = "," in old and "," not in value
        return f"{int(value):,}" if comma and value.isdigit() else value
    if span.kind == "clock":
        hour, minute = value.split(":")
        padded = f"{int(hour):02}" if old[0] == "0" else hour
        return padded + old[-3] + minute
    if span.kind == "email":
        return value
    if span.kind in ("weekday", "month") and len(old) < len(span.key):
        return coining.in_case_of(value[:3], old)
    if span.kind == "code":
        return value.lower() if old.islower() else value if old.isupper() else _cased(value, old)
    return coining.in_case_of(value, old)


def _cased(value: str, old: str) -> str:
    return "".join(v.upper() if o.isupper() else v.lower() for v, o in zip(value, old, strict=True))


def _ordinal(number: str) -> str:
    if number[-2:] in ("11", "12", "13"):
        return "th"
    return {"1": "st", "2": "nd", "3": "rd"}.get(number[-1], "th")


def _with_article(before: str, old: str, value: str) -> str:
    """``before``, whose "a" or "an" at its end is made to fit ``value`` if it fitted ``old``."""
    match = re.search(r"(?:^|(?<=[\s\"'(]))([Aa]n?)( ['\"]?)$", before)
    if match is None or (match[1].lower() == "an") != coining.takes_an(old):
        return before
    article = match[1][0] + ("n" if coining.takes_an(value) else "")
    return before[: match.start()] + article + match[2]
