"""The points of a figure, and the file that keeps those measured so far."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .report import write_text


@dataclass(frozen=True)
class Point:
    """One marker in each row of a figure.

    Attributes:
        panel: the column.
        series: the line; what comes before a comma gives its colour, what follows its style.
        x: label on the horizontal axis.
        call_reduction, speedup, nodes: see ``runner.Compared.figures``.
        quality: of the text, where the figure shows it.
    """

    panel: str
    series: str
    x: str
    call_reduction: float
    speedup: float
    nodes: float
    quality: float | None = None


class PointFile:
    """Points in groups that are measured together; a group in the file is not measured again.

    Args:
        path: of the JSON file.
        settings: what was asked for; a file that was measured with others is begun anew.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self._path = path
        self._content: dict[str, Any] = {"settings": settings, "facts": {}, "groups": {}}
        if path.exists():
            content = json.loads(path.read_text())
            if content["settings"] == settings:
                self._content = content

    def add(self, group: str, measure: Callable[[], list[Point]], facts: dict[str, Any]) -> None:
        """Measure a group and write the file, unless it has the group.

        Args:
            group: its name.
            measure: gives its points.
            facts: of this machine.
        """
        if group in self._content["groups"]:
            return
        self._content["groups"][group] = [asdict(point) for point in measure()]
        self._content["facts"] = facts
        write_text(self._path, json.dumps(self._content, indent=1) + "\n")

    def points(self) -> list[Point]:
        """All of them, in the order of measuring."""
        groups = self._content["groups"].values()
        return [Point(**values) for group in groups for values in group]
