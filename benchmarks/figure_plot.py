"""Draws the points of a figure: a row for each measure, a column for each panel."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from specstream_mlx import UserError

from .figure_points import Point

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
STYLES = (("-", "o"), ("--", "s"), (":", "^"))


def check_matplotlib() -> None:
    """Whether anything can be drawn.

    Raises:
        UserError: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib, which is missing: pip install -e '.[plots]'")


def draw(
    points: Sequence[Point],
    path: Path,
    title: str,
    x_label: str,
    measures: Mapping[str, str],
) -> None:
    """Write a PNG.

    Args:
        points: their order is that of the panels, lines and horizontal labels.
        path: of the PNG.
        title: a line or two; names the machine.
        x_label: of the horizontal axes.
        measures: label of the vertical axis by field of ``Point``. A single panel has its measures
            side by side.
    """
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(point.panel for point in points))
    labels = list(dict.fromkeys(point.x for point in points))
    across = len(panels) == 1
    rows, columns = (1, len(measures)) if across else (len(measures), len(panels))
    figure = Figure(figsize=(1.2 + 3.1 * columns, 1.4 + 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=False if across else "row")
    for row, (field, label) in enumerate(measures.items()):
        for column, panel in enumerate(panels):
            axes = grid[0][row] if across else grid[row][column]
            shown = [point for point in points if point.panel == panel]
            for series, (color, line, marker) in _styles(points).items():
                some = [point for point in shown if point.series == series]
                places = [labels.index(point.x) for point in some]
                heights = [getattr(point, field) for point in some]
                axes.plot(
                    places, heights, line, marker=marker, color=color, markersize=4, label=series
                )
            if field == "speedup":
                axes.axhline(1, color="0.4", linewidth=0.8)
            axes.set_xticks(range(len(labels)), labels)
            axes.grid(alpha=0.3)
            if across or row == len(measures) - 1:
                axes.set_xlabel(x_label)
            if across or column == 0:
                axes.set_ylabel(label)
            if row == 0 and not across:
                axes.set_title(panel, fontsize=10)
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _styles(points: Sequence[Point]) -> dict[str, tuple[str, str, str]]:
    """Colour, line and marker of each series."""
    names = list(dict.fromkeys(point.series for point in points))
    parts = {name: name.partition(", ")[::2] for name in names}
    heads, tails = (list(dict.fromkeys(part[i] for part in parts.values())) for i in (0, 1))
    return {
        name: (
            COLORS[heads.index(head) % len(COLORS)],
            *STYLES[tails.index(tail) % len(STYLES)],
        )
        for name, (head, tail) in parts.items()
    }
