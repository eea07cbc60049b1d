"""One HTML page of a comparison of drafters: plots in SVG, and the tables; it needs no other file.

The page follows the reader's choice of light or dark. A plot's dots say what they are when pointed
at.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .rival_methods import added
from .rival_texts import GROUPS
from .rivals_report import (
    READING,
    Rows,
    Table,
    about,
    by_class,
    depths_of,
    in_all_classes,
    in_trees,
    of_base,
    ranked,
    sizes_table,
    summaries,
    tables_of,
    temperatures,
    timed,
    usual_size,
)

_COLOURS = 10
_WIDTH, _LEFT, _RIGHT, _LINE = 860, 190, 24, 26

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2228; --dim: #68717c; --line: #dde1e6; --ground: #fff;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b07aa1; --c4: #c49000; --c5: #4e79a7;
  --c6: #e15759; --c7: #6b8e23; --c8: #8c564b; --c9: #7f7f7f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --dim: #98a1ab; --line: #353b43; --ground: #15181c;
    --c0: #56b4e9; --c1: #f28e2b; --c2: #3fc79a; --c3: #d4a6c8; --c4: #f0d04c; --c5: #86a8d4;
    --c6: #ff8d8f; --c7: #a9cf5a; --c8: #c49c94; --c9: #b0b0b0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .first { font-size: 1.1rem; font-weight: 600; }
.scroll { overflow-x: auto; } details { margin: .3rem 0; } summary { cursor: pointer; }
svg { width: 100%; height: auto; min-width: 40rem; font-size: 12px; }
svg text { fill: var(--ink); } svg .dim { fill: var(--dim); }
svg .grid { stroke: var(--line); } svg .one { stroke: var(--dim); stroke-dasharray: 4 3; }
svg .mean { stroke: var(--ink); stroke-width: 3; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--dim); font-weight: 600; white-space: normal; vertical-align: bottom; }
.key { display: inline-block; margin-right: 1rem; white-space: nowrap; font-size: 13px; }
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%;
  margin-right: .35rem; }
.key .dashed { border-radius: 0; height: .25rem; vertical-align: middle; }
""" + "\n".join(
    f".f{i} {{ fill: var(--c{i}); }} .s{i} {{ stroke: var(--c{i}); fill: none; stroke-width: 2; }} "
    f".b{i} {{ background: var(--c{i}); }}"
    for i in range(_COLOURS)
)


def page(values: Mapping[str, Any]) -> str:
    """Write the page.

    Args:
        values: of the report's JSON file.
    """
    first, *others = about(values)
    body = ["<h1>Drafters side by side</h1>", f'<p class="first">{escape(first)}</p>']
    body += [f"<p>{escape(line)}</p>" for line in others]
    body += [part for one in summaries(values) for part in _titled(one)]
    body += ["<h2>How to read it</h2>", *(f"<p>{escape(line)}</p>" for line in READING)]
    size = usual_size(values["rows"])
    for temperature in temperatures(values["rows"]):
        at = f", temperature {temperature:g}"
        own = [row for row in values["rows"] if row["temperature"] == temperature]
        body += _section(
            f"Speed over mlx_lm{at}",
            "A dot for each class of texts, a bar for the mean of those that the base answers, the "
            "fastest method first. Dots right of the dashed line are faster than plain decoding.",
            strips(timed(own), "speedup", "x"),
            _group_keys(timed(own)),
        )
        body += _section(
            f"Tokens a call in trees of {size} nodes{at}",
            "A dot for each class of texts, a bar for the mean of those that the base answers: how "
            "often drafts are right, the best method first.",
            strips(in_trees(own), "accepted", ""),
            _group_keys(in_trees(own)),
        )
        shares = depths_of(own, temperature)
        body += _section(
            f"Share of calls that accept so many drafted tokens or more{at}",
            f"Over all classes of the base, in trees of {size} nodes.",
            lines(shares),
            _keys(shares),
        )
        body += _section(
            f"Parameters beside the base's, and tokens a call{at}",
            f"More tokens a call in trees of {size} lie higher, fewer parameters further left.",
            by_parameters(in_all_classes(of_base(in_trees(own))), values["sizes"]),
            "",
        )
    body += [part for one in tables_of(values) for part in _titled(one)]
    body.append("<h2>Class by class</h2>")
    for one in by_class(values):
        inner = f"<p>{escape(one.note)}</p>\n{_table(one)}"
        body.append(f"<details><summary>{escape(one.title)}</summary>\n{inner}</details>")
    body += _titled(sizes_table(values))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Drafters side by side</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _section(title: str, note: str, svg: str, keys: str) -> list[str]:
    if not svg:
        return []
    return [f"<h2>{escape(title)}</h2>", f"<p>{escape(note)}</p>", f"<p>{keys}</p>", svg]


def _titled(one: Table) -> list[str]:
    return [f"<h2>{escape(one.title)}</h2>", f"<p>{escape(one.note)}</p>", _table(one)]


def _table(one: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in one.columns)
    lines = [
        "<tr>" + "".join(f"<td>{_cell(row.get(column))}</td>" for column in one.columns) + "</tr>"
        for row in one.rows
    ]
    return f'<div class="scroll"><table><tr>{head}</tr>\n' + "\n".join(lines) + "</table></div>"


def _cell(cell: str | None) -> str:
    """A cell; what stands between pairs of asterisks is strong."""
    if cell is None:
        return "-"
    return re.sub(r"^\*\*(.*)\*\*$", r"<strong>\1</strong>", escape(cell))


def _group_keys(rows: Rows) -> str:
    """The keys of the groups of rows, in the colours that they have in all plots."""
    return _keys(GROUPS, {row["group"] for row in rows})


def _keys(names: Iterable[str], shown: Iterable[str] | None = None) -> str:
    return " ".join(
        f'<span class="key"><i class="b{i % _COLOURS}{" dashed" if i >= _COLOURS else ""}"></i>'
        f"{escape(name)}</span>"
        for i, name in enumerate(names)
        if shown is None or name in shown
    )


# Plots --------------------------------------------------------------------------------------


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    inner = "\n".join(parts)
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(label)}">\n{inner}\n</svg></div>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def _dot(x: float, y: float, colour: int, title: str) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill-opacity=".75" '
        f'class="f{colour % _COLOURS}"><title>{escape(title)}</title></circle>'
    )


def _steps(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        if (high - low) / step <= most:
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def strips(rows: Rows, figure: str, unit: str) -> str:
    """Plot a line for each method, with a dot for each class and a bar at the base's mean.

    Args:
        rows: of the report.
        figure: what is plotted: ``speedup`` or ``accepted``.
        unit: behind the numbers of the axis.
    """
    if not rows:
        return ""
    means = {method: mean for method, mean, _ in ranked(in_all_classes(of_base(rows)), figure)}
    methods = list(dict.fromkeys([*means, *(row["method"] for row in rows)]))
    groups = list(GROUPS)
    found = [row[figure] for row in rows]
    low, high = min(0.8, *found), max(1.5, *found) * 1.02

    def at(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    height = _LINE * len(methods) + 30
    parts = []
    for step in _steps(low, high):
        parts.append(_line(at(step), 6, at(step), height - 24, "grid"))
        parts.append(_text(at(step), height - 8, f"{step:g}{unit}", kind="dim"))
    parts.append(_line(at(1), 6, at(1), height - 24, "one"))
    for number, method in enumerate(methods):
        y = 6 + _LINE * (number + 0.5)
        own = [row for row in rows if row["method"] == method]
        parts.append(_text(_LEFT - 12, y + 4, method, "end"))
        for row in own:
            title = f"{method}, {row['class']}: {row[figure]:.2f}{unit}"
            parts.append(_dot(at(row[figure]), y, groups.index(row["group"]), title))
        if method in means:
            mean = at(means[method])
            parts.append(_line(mean, y - 9, mean, y + 9, "mean"))
    return _svg(height, "A dot for each class of texts by method", parts)


def lines(shares: Mapping[str, Sequence[float]]) -> str:
    """Plot the share of calls by accepted depth, a line for each method."""
    if not shares:
        return ""
    height, depths = 280, len(next(iter(shares.values())))
    top, bottom = 12, height - 30

    def at(depth: float, share: float) -> tuple[float, float]:
        x = 50 + (depth - 1) / (depths - 1) * (_WIDTH - 50 - _RIGHT)
        return x, bottom - share * (bottom - top)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        (left, y), (right, _) = at(1, share), at(depths, share)
        parts += [_line(left, y, right, y, "grid"), _text(40, y + 4, f"{share:.0%}", "end", "dim")]
    for depth in range(1, depths + 1):
        parts.append(_text(at(depth, 0)[0], height - 10, str(depth), kind="dim"))
    for number, (method, own) in enumerate(shares.items()):
        points = [at(depth, share) for depth, share in enumerate(own, start=1)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 3"' if number >= _COLOURS else ""
        parts.append(f'<polyline points="{path}" class="s{number % _COLOURS}"{dashes}/>')
        for (x, y), (depth, share) in zip(points, enumerate(own, start=1), strict=True):
            parts.append(_dot(x, y, number, f"{method}, {depth}: {share:.0%}"))
    return _svg(height, "Share of calls by accepted depth", parts)


def by_parameters(rows: Rows, sizes: Rows) -> str:
    """Plot the mean of what methods accept over the parameters that they add, on a log scale."""
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row["accepted"] for row in rows if row["method"] == method]
        count = added(method, sizes, "parameters") or 0
        found.append((method, count, statistics.geometric_mean(own)))
    if not found:
        return ""
    height, top = 320, 16
    bottom, most = height - 34, max(1e4, *(count for _, count, _ in found)) * 4
    low, high = 1.0, max(2.0, *(value for *_, value in found)) * 1.05

    def x_of(count: float) -> float:
        share = math.log10(max(count, 100) / 100) / math.log10(most / 100)
        return 90 + share * (_WIDTH - 200)

    def y_of(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    shapes = []
    for value in _steps(low, high):
        shapes.append(_line(60, y_of(value), _WIDTH - _RIGHT, y_of(value), "grid"))
        shapes.append(_text(50, y_of(value) + 4, f"{value:g}", "end", "dim"))
    shapes.append(_text(x_of(0), height - 12, "none", kind="dim"))
    for power in range(3, math.floor(math.log10(most)) + 1):
        name = {3: "1k", 4: "10k", 5: "100k", 6: "1M", 7: "10M", 8: "100M"}.get(power, f"1e{power}")
        shapes.append(_text(x_of(10**power), height - 12, name, kind="dim"))
    taken: list[tuple[float, float, str]] = []
    for number, (method, count, value) in enumerate(found):
        x, y = x_of(count), y_of(value)
        shapes.append(_dot(x, y, number, f"{method}: {count:,} parameters, {value:.2f}"))
        places = (y + 13 * side * place for place in range(len(found)) for side in (1, -1))
        y = next(y for y in places if _is_free(x, y, method, taken))
        taken.append((x, y, method))
        shapes.append(_text(x + 9, y + 4, method, "start"))
    return _svg(height, "Tokens accepted a call over added parameters", shapes)


def _is_free(x: float, y: float, text: str, taken: Iterable[tuple[float, float, str]]) -> bool:
    """Whether a label at a place lies over none of others, each with its place."""
    return not any(
        x < left + 7 * len(other) + 14 and left < x + 7 * len(text) + 14 and abs(y - line) < 13
        for left, line, other in taken
    )
