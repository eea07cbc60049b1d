"""Names and numbers in an answer that the text it answers does not contain.

A model that rewrites a text may change its words, but who, when and how much must come from the
text. Names are words with a capital that does not begin a sentence; in SQL they are the table's and
columns' names and the quoted values. Ways to write the same thing count as the same: 3 and three,
Tues and Tuesday, 9.30 and 9:30, Ana's and Ana.
SQL may count from the number beside (three or more is > 2) and say a year by its first and last
day.
"""

import re

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_SMALL)} | dict(
    pair.split(":")
    for pair in (
        "thirty:30 forty:40 fifty:50 sixty:60 hundred:100 a:1 an:1 first:1 second:2 third:3 "
        "half:30 quarter:15 no:0 none:0 noon:12 midday:12 midnight:12 once:1 twice:2 couple:2"
    ).split()
)
_DATES = (
    "monday tuesday wednesday thursday friday saturday sunday january february march april may "
    "june july august september october november december"
).split()
_NOT_NAMES = set(
    (
        "i i'm i've i'll i'd ok hi hello dear mr mrs ms dr am pm tv uk usa english christmas "
        "internet"
    ).split()
)
_SQL_WORDS = set(
    (
        "select from where and or not in is null like between group by order having limit asc "
        "desc count sum avg min max distinct as on join inner left right outer union all exists "
        "case when then else end offset year month strftime lower upper"
    ).split()
)
_SQL_FREE = re.compile(r"\b(?:LIMIT|OFFSET|SELECT) \d+|(?<=\d)-\d\d-\d\d\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_](?:[\w'-]*\w)?")
_DIGITS = re.compile(r"\d+(?:,\d{3})*")


def invented(task: str, answer: str, text: str) -> list[str]:
    """The names and numbers of ``answer`` that ``text`` does not contain."""
    answer, text = (part.replace("\u2019", "'") for part in (answer, text))
    known = {_plain(word) for word in _WORD.findall(text)}
    given = set(_numbers(text)) | {_NUMBER_WORDS[word] for word in known & _NUMBER_WORDS.keys()}
    if task == "sql":
        return _invented_in_sql(_SQL_FREE.sub("", answer), text, given)
    found = [number for number in _numbers(answer) if number not in given]
    return found + [name for name in names_in(answer) if not _known(_plain(name), known)]


def _invented_in_sql(query: str, text: str, given: set[str]) -> list[str]:
    beside = {str(int(number) + step) for number in given for step in (-1, 0, 1)}
    found = [number for number in _numbers(query) if number not in beside]
    parts = {part.lower() for part in re.findall(r"[^\W\d]\w*", text)}
    words = [word for word in re.findall(r"[^\W\d]\w*", query) if word.lower() not in _SQL_WORDS]
    return found + [word for word in words if not _known(word.lower(), parts)]


def _numbers(text: str) -> list[str]:
    return [str(int(number.replace(",", ""))) for number in _DIGITS.findall(text)]


def names_in(text: str) -> list[str]:
    """Words with a capital inside a sentence; the first word of one may be any word."""
    found = []
    for match in _WORD.finditer(text):
        before = text[: match.start()].rstrip("\"'( ")
        begins = not before or before[-1] in ".!?:;-*\n"
        word = match.group()
        if word[0].isupper() and not begins and word.lower() not in _NOT_NAMES:
            found.append(word)
    return found


def _plain(word: str) -> str:
    word = word.lower()
    for ending in ("'s", "s'", "'"):
        word = word.removesuffix(ending)
    return word


def _known(name: str, known: set[str]) -> bool:
    if name in known or name.removesuffix("s") in known or f"{name}s" in known:
        return True
    if "-" in name:
        return all(_known(part, known) for part in name.split("-"))
    if name in _DATES:
        return any(len(word) >= 3 and name.startswith(word[:3]) for word in known)
    return False
