"""The English that rules go by: words, patterns and limits, which the page reads, too.

They stand in ``page/english.json``; ``page/english.js`` says what each part is.
"""

import json
import re
from pathlib import Path

_PAGE = Path(__file__).parent / "page"
_ENGLISH = json.loads((_PAGE / "english.json").read_text(encoding="utf-8"))

_IN_PYTHON = {
    r"[\p{L}\p{N}_]": r"\w",
    r"[\p{L}\p{N}]": r"[^\W_]",
    r"[^\p{L}\p{N}]": r"[\W_]",
    r"\p{Nd}": r"\d",
}
"""What JavaScript's classes of characters are called here."""

BY_PARAGRAPH: list[str] = _ENGLISH["tools_by_paragraph"]
CONTRACTIONS = _ENGLISH["contractions"]
DATES: dict[str, list[str]] = {name: dates.split() for name, dates in _ENGLISH["dates"].items()}
LIMITS: dict[str, int] = _ENGLISH["limits"]
WORDS = {name: {*" ".join(lines).split()} for name, lines in _ENGLISH["words"].items()}
FORMS = [{*group.split()} for group in _ENGLISH["forms"]]
EXCHANGES = [[{*group.split()} for group in kind] for kind in _ENGLISH["exchanges"]]


def _compiled(source: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    for theirs, ours in _IN_PYTHON.items():
        source = source.replace(theirs, ours)
    return re.compile(source, flags)


CUTS = [_compiled(source) for source in _ENGLISH["cuts"]]
PATTERNS = {name: _compiled(source) for name, source in _ENGLISH["patterns"].items()} | {
    name: _compiled(source, re.IGNORECASE)
    for name, source in _ENGLISH["patterns_in_any_case"].items()
}
