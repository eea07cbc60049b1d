"""Text to SQL: a schema and a question become one SELECT statement.

Table and column names are drawn anew for every item, so they have to be copied from the schema.
Held out for the test split: forms of the question (orders of its parts that training never shows,
made of the same phrases) and pairs of clauses that never occur together in training.
"""

import random
from dataclasses import dataclass

from . import names
from .item import Item, Split

NAME = "sql"
INSTRUCTION = "Write the SQL query for this question."

_TABLES = """accounts actors albums animals apartments artists assets bookings books branches
bridges buildings buses cameras campaigns cars cases cities claims classes clients clinics companies
concerts contracts courses customers deliveries departments devices doctors documents drivers
employees engines events farms films flights forms games gardens goals grants guests hotels
invoices islands items journeys lakes lessons letters libraries licenses loans machines managers
markets matches meals meetings members messages mines museums nurses offers offices orders parcels
parks parts patients payments permits pilots planets plants players policies ports printers prizes
products projects radios recipes records regions rentals repairs reports reviews rivers roads
rooms routes samples schools sensors servers ships shops singers songs stations stores students
studies subscribers suppliers surveys systems tasks teachers teams tests tickets tools towers
towns trains trips trucks vehicles villages visits visitors volunteers warehouses workers
workshops""".split()

_TEXT_COLUMNS = """address author bank brand building category channel chef city class client coach
code color company contact continent country county course currency customer department
description designer destination director district doctor driver editor email farm flavor format
genre grade group hotel industry job label language leader level location maker manager material
method model name nationality note office origin owner party phone pilot plan platform position
producer product program province publisher reason region role room school season section sector
shape shift shop singer size sponsor sport stage state station status street style subject supplier
surname team theme title topic town type unit university vendor village zone""".split()

_NUMBER_COLUMNS = """age amount area balance beds bonus budget calories capacity capital cost credit
deposit depth discount distance duration fee floor fuel goals height hours income length limit
load loss mass mileage minutes pages pay points population power premium price profit quantity
rank rate rating revenue rooms salary sales score seats share shares size_cm speed staff stars stock
students tax temperature tickets tons total value visitors volume votes wage weight width
wins year_built years""".split()

_PREFIXES = ["", "", "", "", "first_", "last_", "main_", "old_", "new_", "home_", "base_", "max_"]

_WORDS = """active bronze central closed cotton daily digital eastern express gold green grey indoor
junior large leather local mobile monthly night northern open organic outdoor paid pending plastic
premium private public rare red regular rural senior short silver simple small southern standard
steel urban weekly western white wooden yellow""".split()

_MORE = ["more than", "over", "above", "greater than"]
_LESS = ["less than", "under", "below", "smaller than"]

_FORMS = {
    "train": {
        "what": "what are the {columns} of {table}{where}{order}?",
        "list": "list the {columns} of {table}{where}{order}",
        "show": "show the {columns} for {table}{where}{order}",
        "sorted_list": "{order_first}, list the {columns} of {table}{where}",
        "where_show": "for {table}{where}, show the {columns}{order}",
    },
    "test": {
        "sorted_show": "{order_first}, show the {columns} for {table}{where}",
        "where_what": "for {table}{where}, what are the {columns}{order}?",
        "where_list": "for {table}{where}, list the {columns}{order}",
    },
}

_TRAIN_PAIRS = (
    "plain+equal", "plain+compare", "plain+between", "plain+in", "plain+like", "plain+null",
    "limit+equal", "limit+compare", "limit+in", "limit+null",
    "count+equal", "count+compare", "count+between", "count+like",
    "total+equal", "total+in", "total+between", "total+null",
    "group+equal", "group+compare", "group+like", "group+null",
    "having+equal", "having+compare", "having+in", "having+between",
    "join+equal", "join+compare", "join+like", "join+in",
)  # fmt: skip
_TEST_PAIRS = (
    "limit+between", "limit+like", "count+in", "count+null", "total+compare", "total+like",
    "group+in", "group+between", "having+like", "having+null", "join+between", "join+null",
)  # fmt: skip

TRAIN_TEMPLATES = (*(f"form.{name}" for name in _FORMS["train"]), *_TRAIN_PAIRS)
TEST_TEMPLATES = (*(f"form.{name}" for name in _FORMS["test"]), *_TEST_PAIRS)


@dataclass(frozen=True)
class _Table:
    name: str
    texts: list[str]
    numbers: list[str]
    order: list[str]

    def schema(self) -> str:
        return f"table {self.name}({', '.join(self.order)})"


def _spoken(column: str) -> str:
    return column.replace("_", " ")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _columns(rng: random.Random, pool: list[str], count: int, taken: set[str]) -> list[str]:
    columns: list[str] = []
    while len(columns) < count:
        column = rng.choice(_PREFIXES) + rng.choice(pool)
        if column not in taken:
            taken.add(column)
            columns.append(column)
    return columns


def _table(rng: random.Random, name: str, texts: int, numbers: int, taken: set[str]) -> _Table:
    text_columns = _columns(rng, _TEXT_COLUMNS, texts, taken)
    number_columns = _columns(rng, _NUMBER_COLUMNS, numbers, taken)
    order = text_columns + number_columns
    rng.shuffle(order)
    return _Table(name, text_columns, number_columns, order)


def _text_value(rng: random.Random) -> str:
    return names.coined(rng) if rng.random() < 0.6 else rng.choice(_WORDS)


def _number(rng: random.Random) -> int:
    return rng.choice((rng.randint(2, 99), rng.randint(100, 999), 100 * rng.randint(10, 99)))


def _condition(rng: random.Random, kind: str, table: _Table, used: set[str]) -> tuple[str, str]:
    """(question, SQL) of one condition on a column that is not in ``used``."""

    def pick(columns: list[str]) -> str:
        column = rng.choice([c for c in columns if c not in used] or columns)
        used.add(column)
        return column

    if kind == "equal":
        column, value = pick(table.texts), _text_value(rng)
        if rng.random() < 0.25:
            return f"{_spoken(column)} not {value}", f"{column} <> '{value}'"
        return f"{_spoken(column)} {value}", f"{column} = '{value}'"
    if kind == "compare":
        column, value = pick(table.numbers), _number(rng)
        phrase, sign = rng.choice(
            [(p, ">") for p in _MORE]
            + [(p, "<") for p in _LESS]
            + [("at least", ">="), ("at most", "<=")] * 2
        )
        return f"{_spoken(column)} {phrase} {value}", f"{column} {sign} {value}"
    if kind == "between":
        column, low = pick(table.numbers), _number(rng)
        high = low + rng.randint(2, 90)
        return (
            f"{_spoken(column)} between {low} and {high}",
            f"{column} BETWEEN {low} AND {high}",
        )
    if kind == "in":
        column = pick(table.texts)
        values = [_text_value(rng) for _ in range(rng.choice((2, 2, 3)))]
        quoted = ", ".join(f"'{value}'" for value in values)
        return f"{_spoken(column)} one of {', '.join(values)}", f"{column} IN ({quoted})"
    if kind == "like":
        column, start = pick(table.texts), names.coined(rng, 1)
        phrase, pattern = rng.choice(
            [("starting with", f"{start}%"), ("ending in", f"%{start.lower()}")]
        )
        word = pattern.strip("%")
        return f"{_spoken(column)} {phrase} {word}", f"{column} LIKE '{pattern}'"
    column = pick(table.texts)
    if rng.random() < 0.5:
        return f"no {_spoken(column)}", f"{column} IS NULL"
    return f"any {_spoken(column)}", f"{column} IS NOT NULL"


def _where(rng: random.Random, kinds: list[str], table: _Table, used: set[str]) -> tuple[str, str]:
    """`` with ... and ...`` and `` WHERE ... AND ...``."""
    pairs = [_condition(rng, kind, table, used) for kind in kinds]
    word = "or" if len(pairs) > 1 and rng.random() < 0.3 else "and"
    question = f" {word} with ".join(question for question, _ in pairs)
    return f" with {question}", " WHERE " + f" {word.upper()} ".join(sql for _, sql in pairs)


def _ordering(rng: random.Random, column: str) -> tuple[str, str, str]:
    """(phrase, phrase at the start of the question, SQL)."""
    down = rng.random() < 0.5
    phrase = f"sorted by {_spoken(column)}{' descending' if down else ''}"
    return f" {phrase}", phrase, f" ORDER BY {column}{' DESC' if down else ''}"


def _query(
    rng: random.Random, shape: str, kinds: list[str], form: str
) -> tuple[list[_Table], str, str]:
    """(tables, question, SQL) of one query shape."""
    taken: set[str] = set()
    first_name, second_name = rng.sample(_TABLES, 2)
    table = _table(rng, first_name, rng.randint(2, 3), rng.randint(1, 3), taken)
    used: set[str] = set()
    if shape == "join":
        other = _table(rng, second_name, rng.randint(2, 3), rng.randint(1, 2), taken)
        key = f"{second_name}_id"
        tables = [
            _Table(table.name, table.texts, table.numbers, [*table.order, key]),
            _Table(other.name, other.texts, other.numbers, ["id", *other.order]),
        ]
        where, where_sql = _where(rng, kinds, other, used)
        own = rng.sample(table.texts + table.numbers, rng.choice((1, 2)))
        theirs = rng.choice([c for c in other.order if c not in used] or other.order)
        spoken = _listed([_spoken(c) for c in [*own, theirs]])
        order, order_first, order_sql = _ordering(rng, rng.choice(own))
        question = form.format(
            columns=spoken,
            table=f"{table.name} and their {other.name}",
            where=where,
            order=order,
            order_first=order_first,
        )
        sql = (
            f"SELECT {', '.join([*own, theirs])} FROM {table.name} JOIN {other.name} "
            f"ON {table.name}.{key} = {other.name}.id{where_sql}{order_sql}"
        )
        return tables, question, sql

    where, where_sql = _where(rng, kinds, table, used)
    order = order_first = order_sql = ""
    tail = ""
    if shape in ("plain", "limit"):
        columns = rng.sample(table.order, rng.randint(2, min(3, len(table.order))))
        spoken, selected = _listed([_spoken(c) for c in columns]), ", ".join(columns)
        order, order_first, order_sql = _ordering(rng, rng.choice(table.order))
        if shape == "limit":
            count = rng.randint(2, 30)
            tail = f" LIMIT {count}"
            spoken = f"first {count} {spoken}"
    elif shape in ("count", "total"):
        parts = []
        if shape == "count":
            column = rng.choice(table.texts)
            parts.append(("number of rows", "COUNT(*)"))
            parts.append((f"number of different {_spoken(column)}", f"COUNT(DISTINCT {column})"))
            parts = parts[:1] if rng.random() < 0.4 else parts
        for column in rng.sample(table.numbers, min(len(table.numbers), rng.choice((1, 2)))):
            parts.append(_aggregate(rng, column))
        spoken, selected = _listed([p for p, _ in parts]), ", ".join(s for _, s in parts)
    else:
        group = rng.choice(table.texts)
        phrase, function = _aggregate(rng, rng.choice(table.numbers))
        spoken, selected = f"{phrase} per {_spoken(group)}", f"{group}, {function}"
        tail = f" GROUP BY {group}"
        if shape == "having":
            count = rng.randint(2, 60)
            spoken += f" with more than {count} rows"
            tail += f" HAVING COUNT(*) > {count}"
        order, order_first, order_sql = _ordering(rng, group)
        tail, order_sql = tail + order_sql, ""
    question = form.format(
        columns=spoken, table=table.name, where=where, order=order, order_first=order_first
    )
    sql = f"SELECT {selected} FROM {table.name}{where_sql}{order_sql}{tail}"
    return [table], question, sql


def _aggregate(rng: random.Random, column: str) -> tuple[str, str]:
    word, function = rng.choice(
        [("total", "SUM"), ("average", "AVG"), ("lowest", "MIN"), ("highest", "MAX")]
    )
    return f"{word} {_spoken(column)}", f"{function}({column})"


def make(rng: random.Random, split: Split) -> Item:
    """One item; a test item has a held-out form of the question or a held-out pair of clauses."""
    held_out_form = split == "test" and rng.random() < 0.5
    held_out_pair = split == "test" and not (held_out_form and rng.random() < 0.5)
    pair = rng.choice(_TEST_PAIRS if held_out_pair else _TRAIN_PAIRS)
    shape, kind = pair.split("+")
    forms = _FORMS["test" if held_out_form else "train"]
    sorts = shape not in ("count", "total")
    form_name = rng.choice([n for n, text in forms.items() if sorts or "order_first" not in text])
    form = forms[form_name]
    kinds = [kind]
    allowed = [p.split("+")[1] for p in _TRAIN_PAIRS if p.startswith(shape + "+")]
    if rng.random() < 0.5:
        kinds.append(rng.choice(allowed))
        rng.shuffle(kinds)
    tables, question, sql = _query(rng, shape, kinds, form)
    content = f"{', '.join(table.schema() for table in tables)}: {question}"
    return Item(NAME, content, sql, (f"form.{form_name}", *(f"{shape}+{k}" for k in kinds)))
