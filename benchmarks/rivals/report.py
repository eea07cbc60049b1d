"""The report of ``rivals``: methods by classes of texts, in tokens a call and in speed."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report import commit, measured_on, table
from ..runner import MLX_LM
from .methods import OUTSIDE
from .texts import OF_BASE

TableRows = Sequence[Mapping[str, Any]]

MEAN = "mean"

READING = (
    "One base writes all texts, so a method changes how many tokens a call writes, never which. "
    "A row is a method, a column a class of texts; where two names are added, both draft in one "
    "tree, and plain is this program without drafts. The best of a column is bold; other programs "
    "stand last and compete for nothing.",
    "Tokens a call: all methods fill trees of as many nodes, whatever that costs, and no figure "
    "depends on the machine; the call that ends the prompt is left out. Speed: tokens per second "
    "after the first token over mlx_lm's plain decoding of the same text, the median over texts; "
    "each step drafts as much as is worth its time on this machine. Means are geometric.",
)


def means_of(rows: TableRows, figure: str) -> dict[str, float]:
    """The means over the base's classes of the methods that took part in all, the best first."""
    classes: dict[str, set[str]] = {}
    for row in rows:
        classes.setdefault(row["method"], set()).add(row["class"])
    every = set().union(*classes.values())
    of_base = [row for row in rows if row["group"] in OF_BASE] or list(rows)
    means = {
        method: statistics.geometric_mean([r[figure] for r in of_base if r["method"] == method])
        for method in classes
        if classes[method] == every
    }
    return dict(sorted(means.items(), key=lambda pair: (pair[0] in OUTSIDE, -pair[1])))


def tables_of(rows: TableRows) -> Iterator[tuple[str, TableRows, str]]:
    """Yield the title of each table, its rows, and the figure that it shows."""
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        at_temperature = [row for row in rows if row["temperature"] == temperature]
        at = f", temperature {temperature:g}" if temperature else ""
        timed = [row for row in at_temperature if "speedup" in row and row["method"] != MLX_LM]
        if timed:
            yield f"Speed over mlx_lm{at}", timed, "speedup"
        for nodes in sorted({row["nodes"] for row in at_temperature if row["nodes"]}):
            shown = [row for row in at_temperature if row["nodes"] == nodes]
            yield f"Tokens a call in trees of {nodes} nodes{at}", shown, "accepted"


def markdown(values: Mapping[str, Any]) -> list[str]:
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
    for title, some, figure in tables_of(rows):
        lines += ["", f"{title}:", "", *_by_class(some, figure, values["parameters"])]
    return lines


def _by_class(rows: TableRows, figure: str, parameters: Mapping[str, int]) -> list[str]:
    names = [*dict.fromkeys(row["class"] for row in rows), MEAN]
    means = means_of(rows, figure)
    cells: dict[str, dict[str, float]] = {m: {} for m in (*means, *(r["method"] for r in rows))}
    for row in rows:
        cells[row["method"]][row["class"]] = row[figure]
    for method, mean in means.items():
        cells[method][MEAN] = mean
    ours = [figures for method, figures in cells.items() if method not in OUTSIDE]
    most = {n: max((figures[n] for figures in ours if n in figures), default=0) for n in names}
    best = {name: f"{figure:.2f}" for name, figure in most.items()}
    shown = []
    for method, figures in cells.items():
        texts = {name: f"{figures[name]:.2f}" if name in figures else "-" for name in names}
        bold = {n: f"**{text}**" if text == best[n] else text for n, text in texts.items()}
        shown.append({"method": method, "own": bold, "parameters": parameters.get(method)})
    columns = {"method": "{method}"} | {name: f"{{own[{name}]}}" for name in names}
    return table(columns | {"parameters": "{parameters:,}"}, shown)
