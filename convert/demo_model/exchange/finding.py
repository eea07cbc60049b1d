"""Finding what can be exchanged in the texts of a line: names, numbers, dates and things."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache

from .. import written
from .lists import MONTHS, NUMBER_WORDS, WEEKDAYS, entries, list_of, things
from .numbers import add_up

_TITLES = frozenset("Mr Mrs Ms Miss Dr Prof Professor Herr Frau Sir Madame Captain".split())
_PLACE_WORDS = frozenset(
    """New San Santa Santo St Saint Sankt Los Las El La Le North South East West Old Port Cape Fort
    Mount Lake River Upper Lower Great Little""".split()
)
_KEPT = frozenset(
    """Christmas Easter Ramadan Diwali Advent Whitsun Pentecost Passover Halloween Thanksgiving
    Lent Eid Hanukkah God English French German Danish Dutch Spanish Italian Portuguese Polish
    Finnish Swedish Norwegian Greek Turkish Arabic Chinese Japanese Korean Vietnamese Welsh Irish
    Scottish British European American Australian Canadian Indian Mexican African Asian Russian
    Ukrainian Lithuanian Latvian Estonian Hungarian Romanian Bulgarian Croatian Serbian Czech
    Slovak Swiss Belgian Austrian Ethiopian Hawaiian Chilean Basque Catalan Haitian Latin Cantonese
    Mandarin Tagalog Amharic Tigrinya Dari Pashto Excel Internet Wi Fi Bible Santa Christmases Danes
    Finns Europe Africa Asia America""".split()
) | {*WEEKDAYS, *MONTHS, *(day + "s" for day in WEEKDAYS)}
_FAMILY = frozenset(
    """Aunt Auntie Uncle Coach Father Sister Brother Nurse Pastor Officer Old Grandma Grandpa
    Cousin Councillor Tailor Driver Landlady Landlord Teacher Support Service Conductor""".split()
)
_BEFORE_THING = frozenset(
    """a an the my your our their his her its this that these those new old another any no some
    second last big small little every each two three four five six""".split()
)
_AFTER_THING = frozenset(
    """is are was were isn't wasn't and or for in on at to with from has had have that which who by
    but because if when will would can could so as into until till before after again you i we
    he she they it there here today tomorrow yesterday now too please""".split()
)
_COLOURED = frozenset(
    """wine tea tie coffee bread rice light lights card cross eye eyes hair magic tape sheep house
    ice beans cabbage pepper peppers flag""".split()
)
_GENDERED = re.compile(r"\b(?:he|she|him|his|her|hers|himself|herself)(?:'s|'d|'ll)?\b", re.I)
_WORD = re.compile(r"(?:O'|D'|Mc|Mac)?[^\W\d_]+(?:-[^\W\d_]+)*")
_NUMBER_WORD = re.compile(
    rf"\b(?:{'|'.join((*NUMBER_WORDS, 'thirty', 'forty', 'fifty', 'sixty', 'seventy', 'eighty'))}|"
    r"ninety|hundred|thousand|million|half|double|twice|third|quarter|dozen|halves|doubled)\b",
    re.I,
)
_COUNTED = NUMBER_WORDS[2:13]
_UNITS = "am|pm|kg|km|cm|mm|m|g|l|ml|cl|h|hrs?|mins?|k|p|gb|mb|kwh?|w|c|ft|in|lbs?|oz|%|th|st|nd|rd"
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ISO = re.compile(r"\b\d{4}-\d{2}(?:-\d{2})?\b")
_CODE = re.compile(
    r"(?<![\w/-])(?=[\w-]*\d)(?=[\w-]*[^\W\d_])[A-Za-z\d]+(?:-[A-Za-z\d]+)*(?![\w/-])"
)
_CLOCK = re.compile(r"(?<![\w.:,/-])(\d{1,2})([:.])(\d{2})(?![\d/-]|[.:]\d)")
_DIGITS = re.compile(
    rf"(?<![\w.:,/-])(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?"
    rf"(?=(?:{_UNITS})\b|%|(?![\w/:]|-\d|[.,]\d))",
    re.I,
)
_MONTH_WORD = rf"(?:{'|'.join((*MONTHS, *(m[:3] for m in MONTHS)))})"
_DAY_OF_MONTH = re.compile(
    rf"(?P<a>\d{{1,2}})(?=(?:st|nd|rd|th)\b|\s+(?:of\s+)?{_MONTH_WORD}\b)|"
    rf"(?<=\b)(?:{_MONTH_WORD})\s+(?P<b>\d{{1,2}})\b",
    re.I,
)
_HOUR = re.compile(
    r"(?:\b(?:at|by|till|until|before|after|from|around|about|to|between|and)\s+)(\d{1,2})"
    r"(?![\d.,:%/-]*\d|%|\s*(?:km|kg|euros|pounds|people|days|weeks|minutes|hours|percent))|"
    r"\b(\d{1,2})(?=\s*(?:am|pm|a\.m|p\.m|o'clock)\b)",
    re.I,
)


@cache
def vocabulary() -> Counter[str]:
    """Count of each word in small letters in the written text."""
    found: Counter[str] = Counter()
    for line in written.read_all():
        texts = (line.values.get("question", line.input), line.answer)
        for text in texts if line.kind != "tables" else texts[:1]:
            found.update(word for word in re.findall(r"[^\W\d_]+", text) if word.islower())
    return found


@dataclass(frozen=True)
class Span:
    """A place in a text.

    Attributes:
        start: index of its first character.
        end: index behind its last character.
        kind: a list's name (``women``, ``cities`` ...), ``speaker``, ``name``, ``thing``,
            ``colour``, ``number``, ``number_word``, ``clock``, ``weekday``, ``month``, ``code`` or
            ``email``.
        key: what it names; spans with the same kind and key are exchanged for the same.
    """

    start: int
    end: int
    kind: str
    key: str


@dataclass
class Found:
    """Places that can be exchanged in some texts that belong together.

    Attributes:
        texts: input, then answer or answers.
        spans: of each text, in order, without overlaps.
        largest: for each number the largest value that may stand in its place, ``None`` for any.
        fixed_numbers: that stay.
        genders: whether the answer tells a person's gender that the input does not.
    """

    texts: list[str]
    spans: list[list[Span]]
    largest: dict[str, int | None] = field(default_factory=dict)
    fixed_numbers: set[str] = field(default_factory=set)
    genders: bool = False

    def keys(self) -> dict[str, list[str]]:
        """The keys of each kind, in order of their first place."""
        keys: dict[str, dict[str, None]] = defaultdict(dict)
        for spans in self.spans:
            for span in spans:
                keys[span.kind][span.key] = None
        return {kind: list(found) for kind, found in keys.items()}


def find(texts: Sequence[str]) -> Found:
    """Find what can be exchanged in an input and its answers.

    Whatever stands in an answer but not in the input stays, and what could depend on it too.
    """
    texts = list(texts)
    claimed = [_claims(text, alone=len(texts) == 1) for text in texts]
    claimed[0] += _short_dates(texts[0], claimed)
    names = _names(texts, claimed)
    spans = []
    for text, claims in zip(texts, claimed, strict=True):
        taken = [claim for claim in claims if claim.kind != "kept"]
        spans.append(sorted(taken + _named(text, names, claims), key=lambda span: span.start))
    found = Found(texts, _without_doubtful_months(texts, spans))
    found.genders = bool(_GENDERED.search(" ".join(texts[1:]))) and not _GENDERED.search(texts[0])
    _settle_numbers(found)
    _keep_what_the_input_lacks(found)
    _keep_words_that_stand_elsewhere(found)
    return found


def _short_dates(text: str, claimed: Sequence[Sequence[Span]]) -> list[Span]:
    """Weekdays and months that the answers have and the input writes small or short."""
    given = {span.key for span in claimed[0]}
    dates = {
        (span.kind, span.key)
        for claims in claimed[1:]
        for span in claims
        if span.kind in ("weekday", "month") and span.key not in given
    }
    spans = []
    for kind, key in sorted(dates):
        short = rf"{key[:3]}s?|{key[:4]}|{key[:5]}" if kind == "weekday" else f"{key[:3]}|{key[:4]}"
        for match in re.finditer(rf"\b(?:{key}(?=s?\b)|(?:{short})\b)", text, re.I):
            if not _overlaps(*match.span(), claimed[0]):
                spans.append(Span(*match.span(), kind, key))
    return spans


def _without_doubtful_months(texts: Sequence[str], spans: list[list[Span]]) -> list[list[Span]]:
    """``spans`` without months if "May" or "March" may be one, or a month has all its days."""
    found = [span for text_spans in spans for span in text_spans if span.kind == "month"]
    text = " ".join(texts)
    seen = sum(len(re.findall(rf"\b{month}\b", text)) for month in ("May", "March"))
    days = (int(match["a"] or match["b"]) for match in _DAY_OF_MONTH.finditer(text))
    claimed = sum(span.key in ("May", "March") for span in found)
    if seen <= claimed and max(days, default=0) <= 28:
        return spans
    return [[span for span in text_spans if span.kind != "month"] for text_spans in spans]


def _overlaps(start: int, end: int, spans: Sequence[Span]) -> bool:
    return any(start < span.end and span.start < end for span in spans)


def _claims(text: str, alone: bool) -> list[Span]:
    """Numbers, codes, dates and things; ``kept`` where nothing may be exchanged.

    Numbers in words only of texts that stand ``alone``: an answer may have worked with them.
    """
    claims: list[Span] = []

    def claim(start: int, end: int, kind: str, key: str) -> None:
        if not _overlaps(start, end, claims):
            claims.append(Span(start, end, kind, key))

    for match in _EMAIL.finditer(text):
        claim(*match.span(), "email", match[0].lower())
    for match in re.finditer(r"\b\d+ h \d+\b|\S*(?:\w/\w|www\.|\.com|\.org)\S*", text):
        claim(*match.span(), "kept", "")
    for match in _ISO.finditer(text):
        claim(*match.span(), "code", match[0])
    for match in _CLOCK.finditer(text):
        if int(match[1]) < 24 and int(match[3]) < 60 and int(match[3]) % 5 == 0:
            claim(*match.span(), "clock", f"{int(match[1])}:{match[3]}")
    for match in _DIGITS.finditer(text):
        claim(*match.span(), "number", match[0].replace(",", ""))
    for match in _CODE.finditer(text):
        unit = re.fullmatch(
            r"\d+[a-z]+|\d+[hmx]\d+|[mA]\d|CO2|MP\d|USB.*", match[0]
        )  # as in "1970s"
        claim(*match.span(), "kept" if unit else "code", match[0].upper())
    for match in _WORD.finditer(text):
        word = match[0]
        if word in WEEKDAYS or (word[-1] == "s" and word[:-1] in WEEKDAYS):
            end = match.end() - (word[-1] == "s")
            claim(match.start(), end, "weekday", text[match.start() : end])
        elif word in MONTHS and (word not in ("May", "March") or _dated(text, match)):
            claim(*match.span(), "month", word)
        elif word.lower() in _COUNTED and alone and _counts_freely(text, match):
            claim(*match.span(), "number_word", word.lower())
        elif word.lower() in things() and _stands_alone(text, match):
            claim(*match.span(), "thing", word.lower())
        elif word in entries("colours") and _is_colour(text, match):
            claim(*match.span(), "colour", word)
    return claims


def _counts_freely(text: str, match: re.Match) -> bool:
    """Tell whether a number in words can be any, and is no part of a word with hyphens."""
    if text[: match.start()].lower().endswith("the "):
        return False  # "one of the two" counts what stands before it
    return "-" not in text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]


def _dated(text: str, match: re.Match) -> bool:
    before = re.search(
        r"(\d|\b(?:of|in|since|until|till|last|next|by|early|late|from|to))\s$",
        text[: match.start()],
    )
    return bool(before or re.match(r"\s\d", text[match.end() :]))


def _stands_alone(text: str, match: re.Match) -> bool:
    """Tell whether a noun is no part of a compound, as "car" is in "car park"."""
    before = re.search(r"([\w'-]+)[ ]$", text[: match.start()])
    after = re.match(r" ?([\w'-]+)", text[match.end() :])
    if before is None or before[1].lower() not in _BEFORE_THING:
        return False
    if text[match.end() : match.end() + 1] in ("-", "'"):
        return False
    return after is None or text[match.end()] != " " or after[1].lower() in _AFTER_THING


def _is_colour(text: str, match: re.Match) -> bool:
    """Tell whether a colour is one, and no part of a name such as "red wine"."""
    before = re.search(r"([\w'-]+)[ ]$", text[: match.start()])
    after = re.match(r" ?([\w'-]+)", text[match.end() :])
    if before is None or before[1].lower() not in {*_BEFORE_THING, "in", "is", "are"}:
        return text[match.start() - 1 : match.start()] == "["
    if after is None or text[match.end()] != " ":
        return before[1].lower() not in _BEFORE_THING  # "on the green" is a place
    return after[1].lower() not in _COLOURED


def _names(texts: Sequence[str], claimed: Sequence[Sequence[Span]]) -> dict[str, str]:
    """The kind of each proper name that stands in the texts with a capital."""
    names: dict[str, str] = {}
    for text, claims in zip(texts, claimed, strict=True):
        previous: re.Match | None = None
        for match in _WORD.finditer(text):
            before = ""
            if previous is not None and text[previous.end() : match.start()] in (" ", ". "):
                before = previous[0]
            kind = _kind(text, match, before, names)
            if kind and not _overlaps(*match.span(), claims):
                names.setdefault(match[0], kind)
            previous = match
    lower = {word.lower() for text in texts for word in re.findall(r"[^\W\d_]+", text)}
    return {name: kind for name, kind in names.items() if not _has_double(name, lower)}


def _kind(text: str, match: re.Match, before: str, names: dict[str, str]) -> str | None:
    word = match[0]
    if (
        not word[0].isupper()
        or len(word) < 2
        or word in _KEPT
        or (word.isupper() and len(word) < 6)
    ):
        return None
    listed = list_of().get(word)
    if before in _TITLES and vocabulary()[word.lower()] < 2:
        return listed if listed in ("women", "men") else "surnames"
    if listed in ("cities", "countries") and before in _PLACE_WORDS:
        return None
    if listed:
        return listed
    if vocabulary()[word.lower()] > 1 or word in _FAMILY:
        return None
    if names.get(before) in ("women", "men") and text[match.start() - 1] == " ":
        return "surnames"
    inside = re.search(r"[\w,;)\[] $|\[$|,$", text[: match.start()])
    speaker = text[match.end() : match.end() + 1] == ":"
    if not inside and not speaker:
        return None
    if before.lower() == "the" and word[-1] == "s":
        return None
    if speaker and word.isalpha():
        return "speaker"
    return "name" if word.isalpha() and len(word) > 2 and before not in _PLACE_WORDS else None


def _has_double(name: str, words: set[str]) -> bool:
    """Look for a similar word beside a name: its plural, a misspelling, a short form."""
    name = name.lower()
    for word in words:
        if word == name or word[0] != name[0] or abs(len(word) - len(name)) > 2 or len(word) < 3:
            continue
        if vocabulary()[word] < 3 and SequenceMatcher(None, word, name).ratio() > 0.75:
            return True
    return False


def _named(text: str, names: dict[str, str], claims: Sequence[Span]) -> list[Span]:
    """The places of names, in any case of letters."""
    by_lower = {name.lower(): name for name in names}
    spans: list[Span] = []
    for match in _WORD.finditer(text):
        name = by_lower.get(match[0].lower())
        if name is None or _overlaps(*match.span(), claims):
            continue
        if match[0] not in (name, name.lower(), name.upper()):
            continue
        spans.append(Span(*match.span(), names[name], name))
    return spans


def _settle_numbers(found: Found) -> None:
    """Tell which numbers can change, and how large they may become; drop the spans of others."""
    counts = Counter(span.key for spans in found.spans for span in spans if span.kind == "number")
    if _is_worked_out(found.texts, counts):
        found.spans = [
            [span for span in spans if span.kind not in ("number", "clock")]
            for spans in found.spans
        ]
        return
    largest = _largest(found.texts)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(found.texts))
    for number, count in counts.items():
        places = re.findall(rf"(?<![\d.:]){re.escape(number)}(?!\d|[.:]\d)", text)
        if number[0] != "0" and float(number) >= 2 and len(number) < 13 and len(places) == count:
            small = number.isdigit() and 10 <= int(number) <= 12
            found.largest[number] = largest.get(number, 12 if small else None)
    found.fixed_numbers = set(counts) - set(found.largest)
    found.spans = [
        [span for span in spans if span.kind != "number" or span.key in found.largest]
        for spans in found.spans
    ]


def _is_worked_out(texts: Sequence[str], numbers: Collection[str]) -> bool:
    """Tell whether an answer may have worked with the input's numbers."""
    if len(texts) == 1:
        return False
    given, answered = (
        {word.lower() for word in _NUMBER_WORD.findall(text)}
        for text in (texts[0], " ".join(texts[1:]))
    )
    said = set(re.findall(r"[a-z]+", " ".join(texts).lower()))
    in_words = [number for number, word in enumerate(NUMBER_WORDS) if word in said]
    return not answered <= given or add_up(numbers, in_words)


def _largest(texts: Sequence[str]) -> dict[str, int]:
    """The largest values of numbers that name days or hours."""
    largest: dict[str, int] = {}
    for text in texts:
        for match in _DAY_OF_MONTH.finditer(text):
            number = match["a"] or match["b"]
            if 2 <= int(number) <= 31:
                largest[number] = 28
        for match in _HOUR.finditer(text):
            number = match[1] or match[2]
            if 2 <= int(number) <= 24:
                largest.setdefault(number, 12 if int(number) <= 12 else 22)
    return largest


def _keep_what_the_input_lacks(found: Found) -> None:
    """Drop the spans of kinds of which an answer has something that the input lacks."""
    if len(found.texts) == 1:
        return
    given = {(span.kind, span.key) for span in found.spans[0]}
    lacking = {
        span.kind
        for spans in found.spans[1:]
        for span in spans
        if (span.kind, span.key) not in given
    }
    digits = set(re.findall(r"\d+", " ".join(found.texts[1:])))
    if not digits <= set(re.findall(r"\d+", found.texts[0])):
        lacking |= {"number", "clock", "code"}
    if re.search(r"\bweekend\b", " ".join(found.texts)):
        lacking.add("weekday")
    lacking -= {"thing", "colour"}
    found.spans = [[span for span in spans if span.kind not in lacking] for spans in found.spans]


def _keep_words_that_stand_elsewhere(found: Found) -> None:
    """Drop things and colours that the input lacks, or that stand where they cannot change."""
    text = " ".join(found.texts).lower()
    given = {span.key for span in found.spans[0]}
    answered = {span.key for spans in found.spans[1:] for span in spans}
    counts = Counter(span.key for spans in found.spans for span in spans)

    def changes(span: Span) -> bool:
        if span.kind not in ("thing", "colour"):
            return True
        forms = {span.key, span.key.removesuffix("s"), span.key.removesuffix("es")}
        forms |= {span.key + "s", span.key + "es", re.sub("y$", "ies", span.key)}
        forms |= {re.sub("ies$", "y", span.key), re.sub("ves$", "f", span.key)}
        places = len(re.findall(rf"\b{span.key}", text))
        others = any(re.search(rf"\b{form}\b", text) for form in forms - {span.key})
        in_both = len(found.texts) == 1 or (span.key in given and span.key in answered)
        return in_both and places == counts[span.key] and not others

    found.spans = [[span for span in spans if changes(span)] for spans in found.spans]
