"""Tables as SQL creates them, in the form that the ``sql`` adapter knows.

Of a statement its name and columns stay, all that is outside statements is the question.
"""

import re

_NAME = r"""(?:"[^"]+"|`[^`]+`|\[[^\]]+\]|\w[\w$]*)"""
_HEAD = re.compile(
    r"\bcreate\s+(?:(?:global|local)\s+)?(?:temp(?:orary)?\s+|unlogged\s+)?table\s+"
    rf"(?:if\s+not\s+exists\s+)?({_NAME}(?:\s*\.\s*{_NAME})*)\s*\(",
    re.IGNORECASE,
)
_OPTIONS = re.compile(
    r"(?:[\s,]*(?:without\s+rowid|strict|tablespace\s+\w+|(?:default\s+)?(?:engine|charset|collate|"
    r"character\s+set|auto_increment|row_format|comment)\s*=?\s*(?:'[^']*'|\w+)))*\s*;?",
    re.IGNORECASE,
)
"""What may stand between a statement's last bracket and its end."""

_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|\w+|.""", re.DOTALL
)
_COLUMN = re.compile(rf"\s*({_NAME})")
_NO_COLUMN = re.compile(
    r"\s*(?:(?:primary|foreign|unique|check|constraint|like)\b|exclude\s+using\b|period\s+for\b|"
    r"""(?:(?:fulltext|spatial)\s+)?(?:key|index)\s*(?:\w+\s*)?\(\s*(?:[^\W\d]|["`\[]))""",
    re.IGNORECASE,
)
"""How constraints and indices of a table begin."""


def as_tables(text: str) -> str:
    """Return ``table NAME(COLUMN, ..), ..: QUESTION``; a text without such statements as it is."""
    tables, question, place = list[str](), list[str](), 0
    while head := _HEAD.search(text, place):
        definitions, end = _definitions(text, head.end())
        if end is None:
            return text
        columns = [
            _plain(column[1])
            for one in definitions
            if (column := _COLUMN.match(one)) and not _NO_COLUMN.match(one)
        ]
        names = re.findall(_NAME, head[1])
        tables.append(f"table {'.'.join(map(_plain, names))}({', '.join(columns)})")
        question.append(text[place : head.start()])
        options = _OPTIONS.match(text, end)
        place = options.end() if options else end
    if not tables:
        return text
    question.append(text[place:])
    asked = re.sub(r"(?m)^\s*(?:--|;)", "", "\n".join(question))
    return f"{', '.join(tables)}: {' '.join(asked.split())}".rstrip()


def _definitions(text: str, start: int) -> tuple[list[str], int | None]:
    """Cut what a bracket holds at its commas, without comments; ``None``: it does not close."""
    found, depth = [""], 1
    for token in _TOKEN.finditer(text, start):
        word = token[0]
        depth += (word == "(") - (word == ")")
        if not depth:
            return found, token.end()
        if word == "," and depth == 1:
            found.append("")
        elif not word.startswith(("--", "/*")):
            found[-1] += word
    return found, None


def _plain(name: str) -> str:
    """A name without its quotes, or in SQL's own where it needs some."""
    bare = name.strip('"`[]')
    return bare if re.fullmatch(r"\w[\w$]*", bare) else f'"{bare}"'
