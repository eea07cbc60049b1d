"""Corrections of a text, and which of them change what it says.

A small model that proofreads also puts another weekday, drops a signature, loses a "not". Such
corrections are found by rules about words, and are somebody's to take, not a program's. The page
does the same (``page/meaning.js``) by the same words (``english``), and both have the same tests.
"""

import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

from .english import CONTRACTIONS, DATES, EXCHANGES, FORMS, LIMITS, PATTERNS, WORDS

_WORD, _NUMBER, _DIGIT = PATTERNS["word"], PATTERNS["number"], PATTERNS["digit"]
_BEFORE_NUMBER, _AFTER_NUMBER = PATTERNS["before_number"], PATTERNS["after_number"]
_MONEY, _ADDRESS = PATTERNS["money"], PATTERNS["address"]
_DAYS = [date for dates in DATES.values() for date in dates]
_NUMBERS, _NEGATIONS, _MODALS = WORDS["numbers"], WORDS["negations"], WORDS["modals"]
_MOST_WORDS = LIMITS["words_more_or_less"]

Words = list[re.Match[str]]


@dataclass(frozen=True)
class Correction:
    """One correction: ``text`` in the place of ``before[start:end]``."""

    before: str
    start: int
    end: int
    text: str
    of_all: bool = False  # of a whole part, such as an item of a list

    @property
    def old(self) -> str:
        """What stood there."""
        return self.before[self.start : self.end]

    @property
    def meaning(self) -> str | None:
        """What the correction changes besides spelling and grammar, such as "a number"."""
        old, new = _words(self.old), _words(self.text)
        if self._loses_a_line(old, new):
            return "a line"
        if self._in_an_address():
            return "an address"
        if self._changes_a_number(old, new):
            return "a number"
        if old and old == new:
            return None
        if len(new) - len(old) > _MOST_WORDS:
            return "words that were not there"
        if len(old) - len(new) > _MOST_WORDS:
            return "words that are gone"
        if _differs(_MONEY, self.old, self.text):
            return "an amount"
        for name, dates in DATES.items():
            if self._changes_a_date(old, new, dates):
                return name
        if _negations(old, new) != _negations(new, old):
            return "a negation"
        if self._changes_a_name(new):
            return "a name"
        if self._signs() and not (_is_spelling(old, new) and self.text.strip() != "."):
            return "a signature"
        said = _exchanges(old, new) or _changes_a_modal(old, new)
        return "a word" if said or not _same_words(old, new) else None

    def _loses_a_line(self, old: list[str], new: list[str]) -> bool:
        whole = "\n" in self.old or ((self.of_all or self._is_line()) and not new)
        return whole and len(new) < len(old)

    def _is_line(self) -> bool:
        before, after = self.before[: self.start], self.before[self.end :]
        return before.rstrip(" ")[-1:] in ("", "\n") and after.lstrip(" ")[:1] in ("", "\n")

    def _in_an_address(self) -> bool:
        places = ((m.start(), m.end()) for m in _ADDRESS.finditer(self.before))
        inside = any(start < self.end and self.start < end for start, end in places)
        return inside or _differs(_ADDRESS, self.old, self.text)

    def _changes_a_number(self, old: list[str], new: list[str]) -> bool:
        # What is written at the number, such as its other half, is part of it.
        front = _BEFORE_NUMBER.search(self.before[: self.start])[0]  # type: ignore[index]
        rest = _AFTER_NUMBER.match(self.before[self.end :])[0]  # type: ignore[index]
        if _differs(_NUMBER, front + self.old + rest, front + self.text + rest):
            return True
        written = _DIGIT.search(self.old + self.text)
        lost = (_NUMBERS & {*old}) - {*new} or (written and not _same_words(old, new))
        return bool(lost) or _gains(old, new, _NUMBERS)

    def _signs(self) -> bool:
        """Whether it is in the last lines, of few words each and no sentence or list."""
        lines = self.before.rstrip().split("\n")
        first = len(lines)
        while first and _signs(lines[first - 1].strip()):
            first -= 1
        start = sum(len(line) + 1 for line in lines[:first])
        return 0 < first < len(lines) - 1 and start <= self.start

    def _changes_a_date(self, old: list[str], new: list[str], dates: list[str]) -> bool:
        written = {*_WORD.findall(self.old), *_WORD.findall(self.text)}
        verbs = WORDS["verbs_in_small_letters"] & written  # such as "may"
        dates = [date for date in dates if date not in verbs]
        short = [word for word in old if len(word) > 2 and any(d.startswith(word) for d in dates)]
        gone = any(not any(one.startswith(word) for one in new) for word in short)
        meant = [date for date in dates if _spells(old, date, dates)]
        gone = gone or any(len(date) > 4 and date not in new for date in meant if not short)
        return gone or any(date in new and not _spells(old, date, dates) for date in dates)

    def _changes_a_name(self, new: list[str]) -> bool:
        for found in _WORD.finditer(self.before, self.start, self.end):
            word, before = found[0], self.before[: found.start()]
            small = word.casefold()
            same = any(_plain(small) == _plain(n) or _spells([small], n, _DAYS) for n in new)
            if same or word in WORDS["no_names"] or not word[0].isalpha():
                continue
            line = self.before[before.rfind("\n") + 1 :].partition("\n")[0]
            signs = line.strip() == self.before.rstrip().rpartition("\n")[2].strip() != ""
            alone = signs and "\n" in self.before.strip() and len(_words(line)) <= 2
            starts, title = PATTERNS["sentence_start"], PATTERNS["title"]
            begins = starts.search(before) and not title.search(before)
            if alone or PATTERNS["addressed"].search(before) or (word[0].isupper() and not begins):
                return True
        return False


def corrections(before: str, after: str) -> list[Correction]:
    """List what makes ``after`` of ``before``, word by word, in order."""
    old, new = list(_WORD.finditer(before)), list(_WORD.finditer(after))
    matcher = SequenceMatcher(None, [m[0] for m in old], [m[0] for m in new], autojunk=False)
    found: list[Correction] = []
    for _, i, i_end, j, j_end in matcher.get_opcodes():
        # New punctuation before or after the words is a correction of its own.
        while j_end - j > max(i_end - i, 1) and not new[j][0].isalnum():
            found.append(_run(before, old, i, i, after, new, j, j + 1))
            j += 1
        last = j_end
        while last - j > max(i_end - i, 1) and not new[last - 1][0].isalnum():
            last -= 1
        j_end, trailing = last, range(last, j_end)
        pairs = list(zip(old[i:i_end], new[j:j_end], strict=False))
        alike = all(a[0][0].isalnum() == b[0][0].isalnum() for a, b in pairs)
        if i_end - i != j_end - j or not alike:
            found.append(_run(before, old, i, i_end, after, new, j, j_end))
        else:
            for place, (word, written) in enumerate(pairs):
                if word[0] == written[0] and i + place and j + place:
                    start, end = old[i + place - 1].end(), word.start()
                    gap = after[new[j + place - 1].end() : written.start()]
                    # White space beside a correction of another word's is part of that one.
                    own = not found or found[-1].end < start
                    own = own or (found[-1].end == start and found[-1].meaning is None)
                    changes = (start == end) != (not gap) and "\n" not in before[start:end] + gap
                    if own and changes:
                        found.append(Correction(before, start, end, gap))
                if word[0] != written[0]:
                    found.append(Correction(before, word.start(), word.end(), written[0]))
        found += [_run(before, old, i_end, i_end, after, new, n, n + 1) for n in trailing]
    return found


def careful(
    before: str, after: str, whole: str | None = None, start: int = 0
) -> tuple[str, list[Correction]]:
    """Make the corrections that change no meaning; returns the text, and those left out.

    ``before`` may be a part of a ``whole`` text, from ``start`` on; what is left out is of that.
    """
    whole = before if whole is None else whole
    text, place, left = "", 0, []
    for one in corrections(before, after):
        said = Correction(whole, start + one.start, start + one.end, one.text, one.old == before)
        if said.meaning is not None:
            left.append(said)
            continue
        text += before[place : one.start] + one.text
        place = one.end
    return text + before[place:], left


def _run(
    before: str, old: Words, i: int, i_end: int, after: str, new: Words, j: int, j_end: int
) -> Correction:
    """Put words ``j`` to ``j_end`` in the place of ``i`` to ``i_end``, within line breaks."""
    start, end = _gap(old, i, before)[0], _gap(old, i_end, before)[1]
    first, last = _gap(new, j, after)[0], _gap(new, j_end, after)[1]
    if i == i_end:
        if "\n" in before[start:end]:  # new words stand before the break, or after their own
            if "\n" in after[first : new[j].start()]:
                start, first = end, new[j].start()
            else:
                end, last = start, new[j_end - 1].end()
    else:
        if "\n" in before[start : old[i].start()]:
            start, first = old[i].start(), new[j].start() if j < j_end else last
        if "\n" in before[old[i_end - 1].end() : end]:
            end, last = old[i_end - 1].end(), new[j_end - 1].end() if j < j_end else first
    return Correction(before, start, end, after[first:last])


def _gap(words: Words, place: int, text: str) -> tuple[int, int]:
    """Return where the white space before a word begins and ends."""
    start = words[place - 1].end() if place else 0
    return start, words[place].start() if place < len(words) else len(text)


def _words(text: str) -> list[str]:
    return [
        word.casefold().replace("\u2019", "'") for word in _WORD.findall(text) if word[0].isalnum()
    ]


def _differs(kind: re.Pattern[str], old: str, new: str) -> bool:
    return Counter(kind.findall(old)) != Counter(kind.findall(new))


def _plain(word: str) -> str:
    return word.replace("'", "")


def _negations(words: list[str], others: list[str]) -> int:
    """Count negations, those in another spelling included if it is right in the other words."""
    negations = [_plain(word) for word in others if _plain(word) in _NEGATIONS]
    near = WORDS["near_negations"]  # but other words
    return sum(
        word in _NEGATIONS
        or (len(word) > 3 and word not in near and any(_is_near(word, n) for n in negations))
        for word in map(_plain, words)
    )


def _signs(line: str) -> bool:
    words = line.split()
    if len(words) > LIMITS["signature_words"]:
        return False
    return not words or (line[0].isalpha() and not PATTERNS["sentence_end"].search(line))


def _is_spelling(old: list[str], new: list[str]) -> bool:
    """Whether words are the same but for a letter each."""
    pairs = zip(map(_plain, old), map(_plain, new), strict=False)
    alike = (_distance(a, b) < 2 or any(a in one and b in one for one in FORMS) for a, b in pairs)
    joined = _distance(_plain("".join(old)), _plain("".join(new))) < 2  # "alot", "a lot"
    return joined or (len(old) == len(new) and all(alike))


def _gains(old: list[str], new: list[str], kind: set[str]) -> bool:
    """Whether words of a kind come that were not there in another spelling."""
    words = [*map(_plain, old)]
    return any(not any(_is_near(word, one) for word in words) for one in (kind & {*new}) - {*old})


def _exchanges(old: list[str], new: list[str]) -> bool:
    for kind in EXCHANGES:
        was, made = (
            {i for i, group in enumerate(kind) for word in words if word.split("'")[0] in group}
            for words in (old, new)
        )
        if was - made and made - was:
            return True
    return False


def _changes_a_modal(old: list[str], new: list[str]) -> bool:
    was, made = _modals(old, new), _modals(new, old)
    return bool(was - made) or _gains([*old, *was], [*made], _MODALS)


def _modals(words: list[str], others: list[str]) -> set[str]:
    """Return the modals of words, but for those that are the others' in another spelling."""
    same, found = {*map(_plain, others)}, set[str]()
    for word in words:
        if _plain(word) not in same:
            stem = _plain(word).removesuffix(CONTRACTIONS["not"])
            stem = CONTRACTIONS["whole"].get(_plain(word), stem)
            endings = CONTRACTIONS["modals"].items()
            found |= {next((m for end, m in endings if word.endswith(end)), stem)} & _MODALS
    return found


def _is_near(a: str, b: str) -> bool:
    return a[0] == b[0] and _distance(a, b) <= 2


def is_grammar(old: str, new: str) -> bool:
    """Whether a text has the same words, in another spelling or form; small ones may differ."""
    return _same_words(_words(old), _words(new))


def _same_words(old: list[str], new: list[str]) -> bool:
    """Whether words that say something stay, in their order, in another spelling or form."""
    if 1 in (len(old), len(new)) and old and new and _is_form("".join(old), "".join(new)):
        return True  # "alot", "a lot"
    fits = {(0, 0)}
    for i in range(len(old) + 1):
        for j in range(len(new) + 1):
            if (
                (i and old[i - 1] in WORDS["small"] and (i - 1, j) in fits)
                or (j and new[j - 1] in WORDS["small"] and (i, j - 1) in fits)
                or (i and j and (i - 1, j - 1) in fits and _is_form(old[i - 1], new[j - 1]))
            ):
                fits.add((i, j))
    return (len(old), len(new)) in fits


def _is_form(a: str, b: str) -> bool:
    """Whether two words are spellings or forms of one; a number is not misspelt."""
    a, b = _plain(a), _plain(b)
    if _DIGIT.search(a + b):
        return a == b
    if any(a in group and b in group for group in FORMS):
        return True
    if len(a) > 2 and b in _DAYS and b.startswith(a):
        return True
    return _distance(a, b) <= max(1, int(0.4 * max(len(a), len(b))))


def _distance(a: str, b: str) -> int:
    """Count the letters to add, remove, replace or swap on the way from ``a`` to ``b``."""
    above: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        earlier, above, row = above, row, [i]
        for j, other in enumerate(b, start=1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                row[-1] = min(row[-1], earlier[j - 2] + 1)
    return row[-1]


def _spells(words: list[str], date: str, dates: list[str]) -> bool:
    """Whether one of some words is one of the dates, in an abbreviation or another spelling."""
    if date not in dates:
        return False

    def alike(word: str, other: str) -> int:
        size = min(len(word), len(other))
        prefix = next((n for n in range(size) if word[n] != other[n]), size)
        rest = min(size - prefix, size)
        suffix = next((n for n in range(rest) if word[-1 - n] != other[-1 - n]), rest)
        return prefix + suffix if prefix > 1 else 0

    return any(
        word == date
        or (len(word) >= 3 and date.startswith(word))
        or (
            alike(word, date) >= max(3, min(len(date) - 1, max(4, len(date) - 3)))
            and alike(word, date) == max(alike(word, other) for other in dates)
        )
        for word in words
    )
