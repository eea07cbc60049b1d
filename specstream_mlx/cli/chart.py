"""Charts of a run's figures, drawn with characters."""

from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LEAST_SPAN = 0.1
"""Of the largest value: the height of a chart, so that what hardly changes looks like it."""


def chart(
    title: str, points: Sequence[tuple[int, float]], width: int = 60, height: int = 5
) -> list[str]:
    """Draw values by iteration.

    Args:
        title: stands above the chart.
        points: iterations, ascending, and their values; at least one.
        width: columns; each shows the value of the last iteration at or before it.
        height: lines, at least 2.

    Returns:
        The lines of the chart, with the values and iterations at its ends at its axes.
    """
    iterations, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    span = max(high - low, _LEAST_SPAN * max(abs(low), abs(high))) or 1.0
    begin, end = iterations[0], iterations[-1]
    columns = []
    for column in range(width):
        at = begin + (end - begin) * column / max(1, width - 1)
        value = next(v for i, v in reversed(points) if i <= at)
        share = (value - low) / span
        columns.append(1 + round(share * (height * 8 - 1)))  # eighths of a line
    labels = [""] * height
    labels[height - 1 - (max(columns) - 1) // 8] = f"{high:.2f}"  # where it stands, not the top
    labels[-1] = f"{low:.2f}"
    margin = max(map(len, labels))
    lines = [title]
    for number, label in enumerate(labels):
        below = 8 * (height - 1 - number)
        cells = "".join(_BLOCKS[min(8, max(0, column - below))] for column in columns)
        lines.append(f"{label:>{margin}} {cells}".rstrip())
    lines.append(f"{'':>{margin}} {begin:<{width - len(str(end))}}{end}")
    return lines
