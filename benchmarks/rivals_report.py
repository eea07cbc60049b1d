"""What ``rivals`` reports of its rows: who is first, tables by classes of texts, and sizes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .report import commit, measured_on, table
from .rival_methods import OUTSIDE, added
from .rival_texts import GROUPS, NODES, OF_BASE
from .runner import MLX_LM

Row = Mapping[str, Any]
Rows = Sequence[Row]

MEAN = "mean"
DEPTHS = 8
"""Of drafted tokens, in tables."""

READING = (
    "One base writes all texts. A drafter proposes tokens, and one call of the base checks them: "
    "it writes as many of them as it would have written itself, and one more. So a drafter "
    "changes how many tokens a call writes, never which.",
    "A row is a method, a column a class of texts; where two names are added, both draft in one "
    "tree, and plain is this program without drafts. The best of a column is bold. Programs "
    "beside this one stand last and compete for nothing: they may run other kernels on other "
    "weights.",
    "Speed is tokens per second behind the first token over those of mlx_lm's plain decoding on "
    "the same text; every method drafts in each step as much as is worth its time on this "
    "machine. Tokens a call says how often drafts are right: all methods fill trees of as many "
    "nodes, whatever that costs, and no figure depends on the machine. 1 is plain decoding in "
    "both.",
    "Figures of a class are medians over its texts (speed) or means over its calls (tokens a "
    "call); those of several classes are geometric means.",
)

_ADDED = {"parameters": "parameters", "bytes on disk": "disk", "bytes in memory": "resident"}


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        title: what it is of.
        note: what its rows and figures are.
        columns: names; the first one names the rows.
        rows: cells by column; ``None``: none. A best one stands between pairs of asterisks.
    """

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Mapping[str, str | None]]


# Figures ------------------------------------------------------------------------------------


def means_of(rows: Rows) -> list[dict[str, Any]]:
    """The geometric means over the classes of each group, of methods that took part in all."""
    means = []
    keys = ("group", "temperature", "nodes", "method")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in keys[:-1]), []).append(row)
    complete = [row for some in groups.values() for row in in_all_classes(some)]
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        own = [row for row in complete if tuple(row[name] for name in keys) == key]
        if len(own) < 2:
            continue
        mean = dict(zip(keys, key, strict=True)) | {"class": MEAN}
        for figure in ("accepted", "speedup"):
            if all(figure in row for row in own):
                mean[figure] = statistics.geometric_mean([row[figure] for row in own])
        means.append(mean)
    return means


def of_base(rows: Rows) -> list[Row]:
    """The rows of texts that the base answers, controls left out; all where there are none."""
    return [row for row in rows if row["group"] in OF_BASE] or list(rows)


def depths_of(rows: Rows, temperature: float) -> dict[str, list[float]]:
    """The shares of calls by accepted depth of each method, over the base's classes alike."""
    found: dict[str, list[float]] = {}
    own = of_base([row for row in in_trees(rows) if row["temperature"] == temperature])
    own = in_all_classes(own)
    for method in dict.fromkeys(row["method"] for row in own):
        shares = [row["depths"] for row in own if row["method"] == method]
        found[method] = [statistics.fmean(column) for column in zip(*shares, strict=True)]
    return found


def in_all_classes(rows: Rows) -> list[Row]:
    """The rows of methods that took part in every class, whose means can be compared."""
    every = {row["class"] for row in rows}
    own: dict[str, set[str]] = {}
    for row in rows:
        own.setdefault(row["method"], set()).add(row["class"])
    return [row for row in rows if own[row["method"]] == every]


def timed(rows: Rows) -> list[Row]:
    """The rows of methods that were timed, without the baseline."""
    return [row for row in rows if "speedup" in row and row["method"] != MLX_LM]


def usual_size(rows: Rows) -> int:
    """The size of trees that methods are compared in: 8, or the first where there are none of 8."""
    sizes = [row["nodes"] for row in rows if row["nodes"]]
    return NODES[0] if NODES[0] in sizes or not sizes else sizes[0]


def in_trees(rows: Rows) -> list[Row]:
    """The rows of trees of the usual size."""
    size = usual_size(rows)
    return [row for row in rows if row["nodes"] == size]


def ranked(rows: Rows, figure: str) -> list[tuple[str, float, int]]:
    """Methods, their geometric means over classes, and in how many they are first, best first.

    Args:
        rows: of one temperature, one for each class and method.
        figure: ``speedup`` or ``accepted``.
    """
    best: dict[str, float] = {}
    for row in rows:
        if row["method"] not in OUTSIDE:
            best[row["class"]] = max(best.get(row["class"], 0.0), round(row[figure], 2))
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        first = sum(round(row[figure], 2) == best.get(row["class"]) for row in own)
        mean = statistics.geometric_mean([row[figure] for row in own])
        found.append((method, mean, 0 if method in OUTSIDE else first))
    return sorted(found, key=lambda one: (one[0] in OUTSIDE, -one[1]))


# Tables -------------------------------------------------------------------------------------


def summaries(values: Mapping[str, Any]) -> list[Table]:
    """A table for each temperature: who is first over all of the base's classes."""
    tables = []
    for temperature in temperatures(values["rows"]):
        rows = of_base([row for row in values["rows"] if row["temperature"] == temperature])
        count = len({row["class"] for row in rows})
        figures = {"speed": ranked(in_all_classes(timed(rows)), "speedup")}
        figures["tokens a call"] = ranked(in_all_classes(in_trees(rows)), "accepted")
        names = dict.fromkeys(name for ranks in figures.values() for name, *_ in ranks)
        cells = []
        for method in names:
            row: dict[str, str | None] = {"method": method}
            for column, ranks in figures.items():
                place = next((one for one in ranks if one[0] == method), None)
                unit = "x" if column == "speed" else ""
                if ranks:
                    row[column] = place and f"{place[1]:.2f}{unit}"
                    row[f"first in {column}"] = place and f"{place[2]} of {count}"
            for column, key in _ADDED.items():
                row[column] = _shown(added(method, values["sizes"], key))
            ours = [one for one in rows if one["method"] == method]
            same, of = (sum(one[k] for one in ours) for k in ("same_output_as_plain", "items"))
            row["texts as plain"] = f"{same} of {of}"
            cells.append(row)
        if not cells:
            continue
        for column in figures:
            _mark(cells, column)
        note = f"By method, means over classes of texts that the base answers, {count} in all."
        title = f"In short{_at(temperature)}"
        tables.append(Table(title, note, list(dict.fromkeys(k for c in cells for k in c)), cells))
    return tables


def tables_of(values: Mapping[str, Any]) -> list[Table]:
    """All tables by groups of classes: speed, tokens a call, and depths."""
    rows, means = values["rows"], values["means"]
    tables = []
    for temperature in temperatures(rows):
        at = _at(temperature)
        for group, note in GROUPS.items():
            own = [
                row
                for row in (*rows, *means)
                if (row["group"], row["temperature"]) == (group, temperature)
            ]
            title = f"{group}{at}: speed over mlx_lm, and quartiles over texts"
            tables += _by_class(title, note, timed(own), "speedup", _speed)
            title = f"{group}{at}: tokens a call in trees of {usual_size(rows)} nodes"
            tables += _by_class(title, note, in_trees(own), "accepted", _accepted)
            sized = [row for row in own if row["nodes"] and row["class"] == MEAN]
            if len({row["nodes"] for row in sized}) > 1:
                title = f"{group}{at}: mean of tokens a call by the size of trees"
                sizes = [row | {"class": _nodes(row)} for row in sized]
                tables += _by_class(title, note, sizes, "accepted", _accepted)
            sized = [row for row in own if row["nodes"] and row["class"] != MEAN]
            for name in dict.fromkeys(row["class"] for row in sized):
                sizes = [row | {"class": _nodes(row)} for row in sized if row["class"] == name]
                if len({row["nodes"] for row in sizes}) > 1:
                    title = f"{name}{at}: tokens a call by the size of trees"
                    tables += _by_class(title, note, sizes, "accepted", _accepted)
        deep = depths_of(rows, temperature)
        if deep:
            cells = [
                {"method": method} | {str(i): f"{x:.2f}" for i, x in enumerate(shares, 1)}
                for method, shares in deep.items()
            ]
            for depth in range(1, DEPTHS + 1):
                _mark(cells, str(depth))
            title = f"Share of calls{at} that accept so many drafted tokens or more"
            note = f"Means over the base's classes, in trees of {usual_size(rows)} nodes."
            tables.append(Table(title, note, list(cells[0]), cells))
    return tables


def by_class(values: Mapping[str, Any]) -> list[Table]:
    """A table for each class, with the columns of Speculative Streaming's first two.

    Those are speed, call reduction, quality and extra parameters, and calls of the target and time.
    Quality is how many texts are plain decoding's.
    """
    tables = []
    rows, sizes = values["rows"], values["sizes"]
    for key in dict.fromkeys((row["temperature"], row["class"]) for row in rows):
        own = [row for row in rows if (row["temperature"], row["class"]) == key]
        cells = []
        for method in dict.fromkeys(row["method"] for row in own):
            parts = [row for row in own if row["method"] == method]
            cell: dict[str, str | None] = {"method": method}
            for row in parts:
                if row["nodes"] is None:
                    cell["speed"] = f"{row['speedup']:.2f}x" if "speedup" in row else None
                    rate = row.get("decode_tps")
                    cell["ms a token"] = f"{1e3 / rate:.1f}" if rate else None
                    cell["calls of the base"] = f"{row['calls']}"
                    cell["call reduction"] = f"{row['tokens'] / max(1, row['calls']):.2f}"
                else:
                    cell[f"tokens a call, {_nodes(row)}"] = _accepted(row)
            same, of = (sum(row[k] for row in parts) for k in ("same_output_as_plain", "items"))
            cell["texts as plain"] = f"{same} of {of}"
            cell["extra parameters"] = _shown(added(method, sizes, "parameters"))
            cells.append(cell)
        columns = list(dict.fromkeys(c for cell in cells for c in cell if cell[c] is not None))
        last = ["texts as plain", "extra parameters"]
        columns = [column for column in columns if column not in last]
        for column in columns[1:]:
            if column not in ("ms a token", "calls of the base"):  # of which fewer are better
                _mark(cells, column)
        temperature, name = key
        note = GROUPS[own[0]["group"]]
        tables.append(Table(f"{name}{_at(temperature)}", note, [*columns, *last], cells))
    return tables


def sizes_table(values: Mapping[str, Any]) -> Table:
    """The table of who drafts, and what that adds to the base."""
    columns = {
        "method": "method",
        "what drafts": "what",
        **_ADDED,
        "and for each token of the text": "bytes_a_token",
    }
    cells = [
        {column: _shown(row[key]) for column, key in columns.items()} for row in values["sizes"]
    ]
    title = "Who drafts, and what that adds to the base"
    note = "Where two names are added, a method adds what both do."
    return Table(title, note, list(columns), cells)


def temperatures(rows: Rows) -> list[float]:
    """The temperatures of rows, in order."""
    return list(dict.fromkeys(row["temperature"] for row in rows))


def _by_class(
    title: str, note: str, rows: Rows, figure: str, cell: Callable[[Row], str]
) -> list[Table]:
    """A table of methods by classes, the best first; none where there are no rows."""
    if not rows:
        return []
    columns = ["method", *dict.fromkeys(row["class"] for row in rows)]
    cells = []
    for method, *_ in ranked([row for row in rows if row["class"] != MEAN], figure):
        own = {row["class"]: cell(row) for row in rows if row["method"] == method}
        cells.append(dict.fromkeys(columns) | {"method": method} | own)
    for column in columns[1:]:
        _mark(cells, column)
    return [Table(title, note, columns, cells)]


def _mark(cells: Sequence[dict[str, Any]], column: str) -> None:
    """Put the largest figures of a column between asterisks, other programs' left out."""
    found = {i: _number(c.get(column)) for i, c in enumerate(cells) if c["method"] not in OUTSIDE}
    most = max((n for n in found.values() if n is not None), default=None)
    if most is None or all(number == most for number in found.values()):
        return
    for i, number in found.items():
        if number == most:
            cells[i][column] = f"**{cells[i][column]}**"


def _number(cell: str | None) -> float | None:
    return None if cell is None else float(cell.split(" ")[0].rstrip("x"))


def _speed(row: Row) -> str:
    spread = "low" in row and f"{row['low']:.2f}" != f"{row['high']:.2f}"
    return f"{row['speedup']:.2f}x" + (f" ({row['low']:.2f}-{row['high']:.2f})" if spread else "")


def _accepted(row: Row) -> str:
    return f"{row['accepted']:.2f}"


def _nodes(row: Row) -> str:
    return f"{row['nodes']} nodes"


def _at(temperature: float) -> str:
    return f", temperature {temperature:g}" if temperature else ""


def _shown(value: Any) -> str | None:
    return f"{value:,}" if isinstance(value, int) else value


# The report ---------------------------------------------------------------------------------


def about(values: Mapping[str, Any]) -> list[str]:
    """The sentences above the tables: who is first, whose texts are right, and on what."""
    facts, rows = values["facts"], values["rows"]
    lines = []
    for temperature in temperatures(rows):
        own = of_base([row for row in rows if row["temperature"] == temperature])
        for said, of, figure, unit in (
            ("Fastest, over mlx_lm's plain decoding", timed(own), "speedup", "x"),
            (
                f"Most tokens a call in trees of {usual_size(rows)} nodes",
                in_trees(own),
                "accepted",
                "",
            ),
        ):
            ranks = [one for one in ranked(in_all_classes(of), figure) if one[0] not in OUTSIDE]
            places = [f"{name} ({mean:.2f}{unit})" for name, mean, _ in ranks[:3]]
            if places:
                lines.append(f"{said}{_at(temperature)}: {', then '.join(places)}.")
    drafted = [row for row in rows if row["method"] != MLX_LM and row["same"]]
    right, texts = (sum(row[key] for row in drafted) for key in ("same_output_as_plain", "items"))
    lines.append(
        f"{right} of {texts} texts are those of plain decoding, token by token: mlx_lm's of the "
        "same prompt, with the same seed above temperature 0; with an adapter in shared mode those "
        "of this model at one token a call."
    )
    for row in drafted:
        if row["same_output_as_plain"] < row["items"]:
            wrong = row["items"] - row["same_output_as_plain"]
            lines.append(f"{row['method']}, {row['class']}: {wrong} of {row['items']} are NOT.")
    for name in OUTSIDE:
        own = [row for row in rows if row["method"] == name]
        if own:
            same, all_ = (sum(row[k] for row in own) for k in ("same_output_as_plain", "items"))
            lines.append(f"{name}, another program: {same} of {all_} are.")
    lines.append(
        f"{measured_on(facts)}, {commit()}; model {facts['model']}; weights {facts['weights']}; "
        f"mlx_lm on {facts['plain_weights']} weights; {facts['per_class']} texts a class, at most "
        f"{facts['max_tokens']} tokens each."
    )
    return [*lines, *values["notes"]]


def markdown(values: Mapping[str, Any]) -> list[str]:
    """The lines of the report."""
    lines = about(values)
    for one in (*summaries(values), *tables_of(values), sizes_table(values)):
        cells = {column: f"{{c{i}}}" for i, column in enumerate(one.columns)}
        numbered = [{f"c{i}": row.get(c) for i, c in enumerate(one.columns)} for row in one.rows]
        lines += ["", f"{one.title}. {one.note}", "", *table(cells, numbered)]
    return [*lines, "", *READING]
