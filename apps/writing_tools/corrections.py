"""Corrections of a text, and which of them change what it says.

A small model that proofreads also puts another weekday, drops a signature, loses a "not". Such
corrections are found by rules about words, and are somebody's to take, not a program's. The page
has the same rules (``page/meaning.js``), and both the same tests.
"""

import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*|[^\w\s]|_")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_BEFORE_NUMBER, _AFTER_NUMBER = re.compile(r"[\d.,:/-]*\Z"), re.compile(r"[\d.,:/-]*")
_MONEY = re.compile(r"[€£$¥%]")
_ADDRESS = re.compile(r"\S*(?:@|://|www\.)\S*")
_DATES = {
    "a weekday": "monday tuesday wednesday thursday friday saturday sunday".split(),
    "a month": (
        "january february march april may june july august september october november december"
    ).split(),
}
_DAYS = [date for dates in _DATES.values() for date in dates]
_NUMBERS = set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand million billion first second third half quarter dozen".split()
)
_NEGATIONS = set(
    "not no never none nobody nothing nowhere neither nor without cannot "
    "dont cant wont isnt arent wasnt werent doesnt didnt hasnt havent hadnt shouldnt wouldnt "
    "couldnt mustnt aint neednt".split()
)
_SMALL = set(
    "an a the this that these those i you he she it we they me him her us them my your his its our "
    "their who whom whose which what am is are was were be been being have has had having do does "
    "did will would shall should can could may might must to of in on at by for from with about "
    "into over under as than and or but so because if when while where there here".split()
)
_FORMS = [
    set(group.split())
    for group in (
        "take took taken|give gave given|go goes went gone|see saw seen|buy bought|bring brought|"
        "think thought|teach taught|catch caught|eat ate eaten|speak spoke spoken|get got gotten|"
        "say said|know knew known|tell told|stand stood|sell sold|make made|pay paid|lie lay lain|"
        "good well better best|bad badly worse worst|much many more most|person people|cannot cant|"
        "you u|your ur|are r|please pls plz|because cuz coz cos|thanks thx|though tho|want wanna|"
        "going gonna|okay ok|do does did done|wasnt werent isnt arent|dont doesnt didnt|"
        "havent hasnt hadnt|child children|man men|woman women|foot feet|tooth teeth"
    ).split("|")
]
"""Irregular forms of a word, and short ways to write it."""
_SAYING = [
    [set(group.split()) for group in kind.split("|")]
    for kind in (
        "i me my mine|you your yours u ur|he him his|she her hers|we us our ours|"
        "they them their theirs",
        "and|or|but|if",
    )
]
"""Small words, of kinds, of which one in the place of another says something else."""
_MODALS = set("will would shall should can could may might must".split())
_STEMS = {"cannot": "can", "cant": "can", "wont": "will"}
_TITLE = re.compile(r"\b(?:mr|mrs|ms|dr|prof|st)\.\s*$", re.IGNORECASE)
_POSITIVES = set("does have would could should must need were want cant".split())
_GREETING = re.compile(
    r"(?:^|\n)\W*(?:(?:hi|hello|hey|dear)\W+|(?:thanks|cheers),\s*)$", re.IGNORECASE
)
_MOST_WORDS = 3  # that may come or go with a correction

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
        for name, dates in _DATES.items():
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
        written = any(letter.isdigit() for letter in self.old + self.text)
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
        # "may" and "march" in small letters are verbs as well.
        dates = [date for date in dates if not {date} & {"may", "march"} & written]
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
            if same or word in ("I", "OK") or not word[0].isalpha():
                continue
            line = self.before[before.rfind("\n") + 1 :].partition("\n")[0]
            signs = line.strip() == self.before.rstrip().rpartition("\n")[2].strip() != ""
            alone = signs and "\n" in self.before.strip() and len(_words(line)) <= 2
            begins = not before.strip() or before.rstrip(" \"'(“")[-1:] in ".!?\n:•*-"
            begins = begins and not _TITLE.search(before)
            if alone or _GREETING.search(before) or (word[0].isupper() and not begins):
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
    return sum(
        word in _NEGATIONS
        or (len(word) > 3 and word not in _POSITIVES and any(_is_near(word, n) for n in negations))
        for word in map(_plain, words)
    )


def _signs(line: str) -> bool:
    words = line.split()
    return not words or (len(words) <= 4 and line[0].isalpha() and line[-1] not in ".!?")


def _is_spelling(old: list[str], new: list[str]) -> bool:
    """Whether words are the same but for a letter each."""
    pairs = zip(map(_plain, old), map(_plain, new), strict=False)
    alike = (_distance(a, b) < 2 or any(a in one and b in one for one in _FORMS) for a, b in pairs)
    joined = _distance(_plain("".join(old)), _plain("".join(new))) < 2  # "alot", "a lot"
    return joined or (len(old) == len(new) and all(alike))


def _gains(old: list[str], new: list[str], kind: set[str]) -> bool:
    """Whether words of a kind come that were not there in another spelling."""
    words = [*map(_plain, old)]
    return any(not any(_is_near(word, one) for word in words) for one in (kind & {*new}) - {*old})


def _exchanges(old: list[str], new: list[str]) -> bool:
    for kind in _SAYING:
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
            stem = _STEMS.get(_plain(word), _plain(word).removesuffix("nt"))
            stem = "will" if word.endswith("'ll") else "would" if word.endswith("'d") else stem
            found |= {stem} & _MODALS
    return found


def _is_near(a: str, b: str) -> bool:
    return a[0] == b[0] and _distance(a, b) <= 2


def _same_words(old: list[str], new: list[str]) -> bool:
    """Whether words that say something stay, in their order, in another spelling or form."""
    if 1 in (len(old), len(new)) and old and new and _is_form("".join(old), "".join(new)):
        return True  # "alot", "a lot"
    fits = {(0, 0)}
    for i in range(len(old) + 1):
        for j in range(len(new) + 1):
            if (
                (i and old[i - 1] in _SMALL and (i - 1, j) in fits)
                or (j and new[j - 1] in _SMALL and (i, j - 1) in fits)
                or (i and j and (i - 1, j - 1) in fits and _is_form(old[i - 1], new[j - 1]))
            ):
                fits.add((i, j))
    return (len(old), len(new)) in fits


def _is_form(a: str, b: str) -> bool:
    """Whether two words are spellings or forms of one; a number is not misspelt."""
    a, b = _plain(a), _plain(b)
    if any(map(str.isdigit, a + b)):
        return a == b
    if any(a in group and b in group for group in _FORMS):
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
