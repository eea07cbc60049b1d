"""Exchanges in a question to a table: values, numbers, columns and the table's name.

The query is still the question's answer: a word of the question that names a column or the table
changes along with them, and a value along with the question.
"""

import random
import re
from functools import cache

from .. import written
from . import coining, numbers
from .lists import MONTHS, NUMBER_WORDS, WEEKDAYS, entries, list_of
from .prose import COINED

Tables = list[tuple[str, list[str]]]
"""Names of tables and their columns."""

_TOKEN = re.compile(r"'[^']*'|\w+|\s+|[^\w\s]")
_NUMBER = re.compile(r"(?<![\w.,:/-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w:/-]|[.,]\d)")
_BEFORE_NOUN = frozenset(
    """which what each every per of the by all many any their its different a an no whose most more
    per highest lowest average total""".split()
)
_MEANT = frozenset(
    """name title id date no number year day time price cost age amount total average how many first
    last
    count on in at to of by per month hour minutes days weight height size length start end old
    type kind list all table sum most more max min value null order and or not""".split()
)
_SQL = frozenset(
    """select from where group order by having join on and or not in is null like between limit as
    desc asc distinct count sum avg min max index table values set case when then else end to add
    all alter any begin check column commit create cross current default delete drop escape except
    exists foreign full glob if ignore inner insert intersect into key left match natural no of
    offset outer plan pragma primary query references replace right row temp trigger union unique
    update using view with""".split()
)
_NEUTRAL = """notes remark barcode updated_at created_by version reference checked_by batch approved
archived row_no last_change import_id label_text verified entered_by language priority tag uuid
folder checksum revision comment external_id source_file visible sort_key""".split()

_SHUFFLED, _DROPPED, _ADDED, _RENAMED, _STEM = 0.4, 0.25, 0.35, 0.15, 0.3
_AS_IS = 0.15  # of the values


@cache
def _small_values() -> tuple[str, ...]:
    """Values in small letters that stand in the written queries."""
    found = set()
    for line in written.read("tables"):
        values = re.findall(r"'([a-z]+(?: [a-z]+)?)'", line.values["query"])
        found |= {value for value in values if value not in ("yes", "no")}
    return tuple(sorted(found))


class TableExchanger:
    """The exchanges of one question to a table."""

    def __init__(self, table: str, question: str, query: str) -> None:
        """Read a line.

        Args:
            table: ``name(column, ...)``, further ones behind ``, table``.
            question: about it.
            query: the answer.
        """
        self.question = question
        self.tables: Tables = [
            (name, [column.strip() for column in columns.split(",")])
            for name, columns in re.findall(r"(\w+)\(([^)]*)\)", table)
        ]
        self.tokens: list[str] = _TOKEN.findall(query)
        self.used = {token for token in self.tokens if re.fullmatch(r"\w+", token)}

    def draw(self, rng: random.Random) -> tuple[str, str, str]:
        """Another table, question and query."""
        question, tokens = self.question, list(self.tokens)
        question, tokens = self._other_values(question, tokens, rng)
        question, tokens = self._other_numbers(question, tokens, rng)
        tables = self._other_columns(question, rng)
        if rng.random() < _STEM:
            tables, question, tokens = _other_stem(tables, question, tokens, rng)
        spec = ", table ".join(f"{name}({', '.join(columns)})" for name, columns in tables)
        return spec, question, "".join(tokens)

    def _other_values(
        self, question: str, tokens: list[str], rng: random.Random
    ) -> tuple[str, list[str]]:
        columns = {column for _, names in self.tables for column in names}
        values = {token[1:-1].strip("%") for token in tokens if token[0] == "'"}
        identifiers = {part for name in columns | self.used for part in name.split("_")}
        new: dict[str, str] = {}
        for value in sorted(values):
            places = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", question)
            plurals = re.search(rf"(?<!\w){re.escape(value)}(?=s\b)", question)
            if not value or not (places or plurals) or value.lower() in identifiers:
                continue
            if any(value in other or other in value for other in values - {value}):
                continue
            other = _value_like(value, bool(plurals), rng)
            taken = " ".join((question, *new.values())).lower()
            if rng.random() >= _AS_IS and other.lower() not in taken and "'" not in other:
                new[value] = other
        dates = [value for value in sorted(new) if re.fullmatch(r"[\d:-]+", value)]
        new.update(zip(dates, sorted(new[value] for value in dates), strict=True))
        if not new:
            return question, tokens
        question = _replaced(question, new)
        return question, [
            token.replace(value, new[value])
            if token[0] == "'" and (value := token.strip("'%")) in new
            else token
            for token in tokens
        ]

    def _other_numbers(
        self, question: str, tokens: list[str], rng: random.Random
    ) -> tuple[str, list[str]]:
        if rng.random() < 0.2:
            return question, tokens
        literals = {token[1:-1] for token in tokens if token[0] == "'"}
        masked = question
        for literal in literals:
            masked = masked.replace(literal.strip("%"), "x" * len(literal.strip("%")))
        in_query = {
            "".join(tokens[at : at + 3]) if tokens[at + 1 : at + 2] == ["."] else token
            for at, token in enumerate(tokens)
            if token[0].isdigit() and tokens[at - 1] != "."
        }
        places = [match for match in _NUMBER.finditer(masked)]
        in_question = {match[0].replace(",", "") for match in places}
        shared = {number for number in in_query & in_question if float(number) >= 2}
        largest = {n: 12 if n.isdigit() and len(n) == 2 and int(n) <= 12 else None for n in shared}
        if any(match[0].replace(",", "") not in in_query for match in places):
            return question, tokens  # the query has computed something of it
        new = numbers.others(largest, (in_query | in_question) - shared, rng)
        for match in reversed(places):
            other = new.get(match[0].replace(",", ""))
            if other:
                other = f"{int(other):,}" if "," in match[0] else other
                question = question[: match.start()] + other + question[match.end() :]
        made, at = [], 0
        while at < len(tokens):
            width = 3 if tokens[at][0].isdigit() and tokens[at + 1 : at + 2] == ["."] else 1
            token = "".join(tokens[at : at + width])
            made.append(new.get(token, token))
            at += width
        words = [word for word in NUMBER_WORDS[2:] if re.search(rf"\b{word}\b", question)]
        if len(words) == 1 and made.count(str(NUMBER_WORDS.index(words[0]))) == 1:
            old = str(NUMBER_WORDS.index(words[0]))
            value = rng.randint(2, 20)
            if old not in question and str(value) not in made:
                question = re.sub(rf"\b{words[0]}\b", NUMBER_WORDS[value], question)
                made = [str(value) if token == old else token for token in made]
        return question, made

    def _other_columns(self, question: str, rng: random.Random) -> Tables:
        """Columns in another order; unused ones left out, renamed and added."""
        words = set(re.findall(r"[a-z]+", question.lower()))
        present = {column for _, columns in self.tables for column in columns}
        shuffled, tables = rng.random() < _SHUFFLED, []
        drops, adds = rng.random() < 0.6, rng.random() < _ADDED
        for name, columns in self.tables:
            kept = []
            for column in columns:
                free = column not in self.used and column != "id"
                if free and drops and rng.random() < _DROPPED:
                    continue
                if free and rng.random() < _RENAMED:
                    column = _free_column(present, words, rng)
                    present.add(column)
                kept.append(column)
            for _ in range(rng.choice((1, 1, 2, 4)) if adds else 0):
                column = _free_column(present, words, rng)
                present.add(column)
                kept.insert(rng.randint(1, len(kept)), column)
            if shuffled:
                first = kept[:1] if kept[0] == "id" and rng.random() < 0.7 else []
                rest = kept[len(first) :]
                rng.shuffle(rest)
                kept = first + rest
            tables.append((name, kept))
        return tables


def _free_column(present: set[str], words: set[str], rng: random.Random) -> str:
    """A column's name that no question asks for."""
    parts = {part for column in present for part in column.split("_")} | words | _SQL
    while True:
        if rng.random() < 0.6:
            column = rng.choice(_NEUTRAL)
        else:
            column = _identifier(rng)
            if rng.random() < 0.3:
                column += "_" + rng.choice(("no", "id", "code", _identifier(rng)))
        if not parts & set(column.split("_")):
            return column


def _identifier(rng: random.Random) -> str:
    while True:
        word = coining.noun(rng)
        if word.isascii() and word not in _SQL:
            return word


def _replaced(question: str, new: dict[str, str]) -> str:
    """``question`` with values exchanged, "a" and "an" as the new ones want it."""

    def exchange(match: re.Match) -> str:
        article, value = match[1] or "", match[2]
        if article and (article.strip().lower() == "an") == coining.takes_an(value):
            article = article[0] + ("n " if coining.takes_an(new[value]) else " ")
        return article + new[value]

    values = "|".join(map(re.escape, sorted(new, key=len, reverse=True)))
    return re.sub(rf"(?<!\w)([Aa]n? )?({values})(?=s?\b|\W|$)", exchange, question)


def _value_like(value: str, plural: bool, rng: random.Random) -> str:
    """Another value of the same kind, as far as its form tells."""
    if plural:
        return coining.noun(rng)
    for order in (WEEKDAYS, MONTHS):
        if value in order:
            return rng.choice(order)
    if re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", value):
        made = [
            f"{rng.randint(2012, 2029)}",
            f"{rng.randint(1, 12):02}",
            f"{rng.randint(1, 28):02}",
        ]
        return "-".join(made[: value.count("-") + 1])
    if re.fullmatch(r"(?:19|20)\d\d", value):
        return str(rng.randint(1950, 2029))
    if re.fullmatch(r"\d{1,2}:\d{2}", value):
        return f"{rng.randint(6, 22):0{value.index(':')}}:{rng.choice((0, 10, 15, 20, 30, 45)):02}"
    if "@" in value:
        return coining.email(rng)
    if re.search(r"\d", value) or (value.isupper() and len(value) < 6):
        return coining.like_code(value, rng)
    if value[0].isupper():
        return _name_like(value, rng)
    if rng.random() < COINED:
        return coining.coined(rng)
    return rng.choice(_small_values()) if rng.random() < 0.6 else rng.choice(entries("rare_words"))


def _name_like(value: str, rng: random.Random) -> str:
    words = value.split(" ")
    listed = list_of().get(value) or list_of().get(words[0])
    if len(words) == 1:
        if rng.random() < COINED or (listed is None and rng.random() < 0.5):
            return coining.coined(rng).capitalize()
        return rng.choice(entries(listed or rng.choice(("cities", "surnames", "women", "men"))))
    made = []
    for word in words:
        if not word[:1].isupper() or word.rstrip(".") in ("Dr", "Mr", "Mrs", "Ms", "St", "Lake"):
            made.append(word)
        elif rng.random() < COINED:
            made.append(coining.coined(rng).capitalize())
        elif made and listed in ("women", "men"):
            made.append(rng.choice(entries("surnames")))
        elif listed in ("women", "men"):
            made.append(rng.choice(entries(listed)))
        else:
            made.append(
                rng.choice(entries(rng.choice(("rare_words", "cities", "surnames")))).title()
            )
    return " ".join(made)


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if re.search(r"(?:ch|sh|x|ss)es$", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _other_stem(
    tables: Tables, question: str, tokens: list[str], rng: random.Random
) -> tuple[Tables, str, list[str]]:
    """Exchange a noun that names a table or a column, wherever the line has it."""
    stems = {}
    for name, columns in tables:
        stems[_singular(name.split("_")[-1])] = True
        for column in columns:
            for part in column.split("_"):
                stems.setdefault(_singular(part), False)
    literals = " ".join(token for token in tokens if token[0] == "'").lower()
    candidates = []
    for stem, names_table in stems.items():
        if stem in _MEANT or len(stem) < 3 or stem in literals or stem.endswith(("ed", "ing")):
            continue
        plural = coining.plural_form(stem)
        found = [*re.finditer(rf"\b(?:{stem}|{plural})\b", question.lower())]
        before = [re.findall(r"[\w']+", question[: match.start()].lower())[-1:] for match in found]
        named = found and all(words and words[0] in _BEFORE_NOUN for words in before)
        if named or (names_table and not re.search(rf"\b{stem}", question.lower())):
            candidates.append(stem)
    if not candidates:
        return tables, question, tokens
    stem = rng.choice(candidates)
    new = _identifier(rng)
    present = {part for name, columns in tables for part in (name, *columns)}
    if any(new in name for name in present) or re.search(rf"\b{new}", question.lower()):
        return tables, question, tokens
    forms = {coining.plural_form(stem): coining.plural_form(new), stem: new}

    def renamed(name: str) -> str:
        return "_".join(forms.get(part, part) for part in name.split("_"))

    tables = [(renamed(name), [renamed(column) for column in columns]) for name, columns in tables]
    tokens = [token if token[0] == "'" else renamed(token) for token in tokens]

    def exchange(match: re.Match) -> str:
        return coining.in_case_of(forms[match[0].lower()], match[0])

    pattern = rf"(?<![a-z])(?:{'|'.join(forms)})(?![a-z])"
    return tables, re.sub(pattern, exchange, question, flags=re.I), tokens
