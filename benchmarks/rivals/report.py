"""The report of ``rivals``: methods by classes of texts, in tokens a call and in speed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..report import commit, measured_on, table
from ..runner import MLX_LM
from .methods import OUTSIDE
from .texts import OF_BASE

Row = Mapping[str, Any]
Rows = Sequence[Row]

MEAN = "mean"

READING = (
    "One base writes all texts, so a method changes how many tokens a call writes, never which. "
    "A row is a method, a column a class of texts; where two names are added, both draft in one "
    "tree, and plain is this program without drafts. The best of a column is bold; other programs "
    "stand last and compete for nothing.",
    "Tokens a call: all methods fill trees of as many nodes, whatever that costs, and no figure "
    "depends on the machine; the call that ends the prompt is left out. Speed: tokens per second "
    "behind the first token over mlx_lm's plain decoding of the same text, the median over texts; "
    "each step drafts as much as is worth its time on this machine. Means are geometric.",
)


def in_all_classes(rows: Rows) -> list[Row]:
    """The rows of methods that took part in every class, whose means can be compared."""
    every = {row["class"] for row in rows}
    return [
        row
        for row in rows
        if every == {other["class"] for other in rows if other["method"] == row["method"]}
    ]


def ranked(rows: Rows, figure: str) -> list[tuple[str, float]]:
    """Methods with their geometric means over the classes of the base, the best first."""
    own = [row for row in rows if row["group"] in OF_BASE] or list(rows)
    means = {
        method: statistics.geometric_mean([r[figure] for r in own if r["method"] == method])
        for method in dict.fromkeys(row["method"] for row in own)
    }
    return sorted(means.items(), key=lambda one: (one[0] in OUTSIDE, -one[1]))


def figures_of(rows: Rows, temperature: float) -> dict[str, tuple[Rows, str]]:
    """The rows of each table, and the figure that it shows, by the table's title."""
    own = [row for row in rows if row["temperature"] == temperature]
    at = f", temperature {temperature:g}" if temperature else ""
    found: dict[str, tuple[Rows, str]] = {}
    timed = [row for row in own if "speedup" in row and row["method"] != MLX_LM]
    if timed:
        found[f"Speed over mlx_lm{at}"] = timed, "speedup"
    for nodes in sorted({row["nodes"] for row in own if row["nodes"]}):
        title = f"Tokens a call in trees of {nodes} nodes{at}"
        found[title] = [row for row in own if row["nodes"] == nodes], "accepted"
    return found


def markdown(values: Mapping[str, Any]) -> list[str]:
    """The lines of the report."""
    facts, rows = values["facts"], values["rows"]
    drafted = [row for row in rows if row["method"] != MLX_LM and row["same"]]
    right, texts = (sum(row[key] for row in drafted) for key in ("same_output_as_plain", "items"))
    lines = [f"{right} of {texts} texts are those of plain decoding, token by token."]
    for row in drafted:
        if row["same_output_as_plain"] < row["items"]:
            wrong = row["items"] - row["same_output_as_plain"]
            lines.append(f"{row['method']}, {row['class']}: {wrong} of {row['items']} are NOT.")
    lines.append(
        f"{measured_on(facts)}, {commit()}; model {facts['model']}; weights {facts['weights']}; "
        f"mlx_lm on {facts['plain_weights']} weights; {facts['per_class']} texts a class, at most "
        f"{facts['max_tokens']} tokens each."
    )
    lines += [*values["notes"], *READING]
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        for title, (own, figure) in figures_of(rows, temperature).items():
            lines += ["", f"{title}:", "", *_by_class(own, figure, values["parameters"])]
    return lines


def _by_class(rows: Rows, figure: str, parameters: Mapping[str, int]) -> list[str]:
    """A table of methods by classes, the best first."""
    classes = list(dict.fromkeys(row["class"] for row in rows))
    means = dict(ranked(in_all_classes(rows), figure))
    first = [method for method, _ in ranked(rows, figure)]
    others = [row["method"] for row in rows if row["method"] not in first]
    cells = []
    for method in dict.fromkeys([*first, *others]):
        own = {row["class"]: row[figure] for row in rows if row["method"] == method}
        cells.append({"method": method} | own | {MEAN: means.get(method)})
    best = {
        name: max((c[name] for c in cells if c.get(name) and c["method"] not in OUTSIDE), default=0)
        for name in (*classes, MEAN)
    }
    shown = [
        {"c0": cell["method"], "p": parameters.get(cell["method"])}
        | {
            f"c{i}": _shown(cell.get(name), best[name])
            for i, name in enumerate((*classes, MEAN), start=1)
        }
        for cell in cells
    ]
    columns = {name: f"{{c{i}}}" for i, name in enumerate(("method", *classes, MEAN))}
    return table(columns | {"parameters": "{p:,}"}, shown)


def _shown(value: float | None, best: float) -> str | None:
    if value is None:
        return None
    text = f"{value:.2f}"
    return f"**{text}**" if text == f"{best:.2f}" else text
