"""Reports: a JSON file of what was measured, and the Markdown table made from it."""

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specstream_mlx import UserError
from specstream_mlx.files import append, read_json_lines, staged_file
from specstream_mlx.options import PATH, option

RESULTS = Path("benchmarks/results")

OUTPUT = option(RESULTS, PATH, "Directory of the result files.")
"""``--output``."""


def machine_suffix(facts: Mapping[str, Any]) -> str:
    """The part of a file's name that tells machines apart, from ``device.describe()``."""
    return facts["machine"].lower().replace(" ", "-")


def commit() -> str:
    """Name the code that is measured: the clone's commit, or the installed version."""
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"version {version('specstream-mlx')}"
    return f"commit {commit.replace('-dirty', ', changed')}"


def measured_on(facts: Mapping[str, Any]) -> str:
    """Machine and software in a line, from ``device.describe()``."""
    return (
        f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']} on {facts['backend']}, "
        f"BLAS: {facts['blas']}"
    )


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = (_cell(cell, row) for cell in columns.values())
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(template: str, row: Mapping[str, Any]) -> str:
    try:
        return template.format_map({key: row[key] for key in row if row[key] is not None})
    except KeyError as error:
        if error.args[0] not in row:
            raise
        return "-"


def write_text(path: Path, text: str) -> None:
    """Write a file so that no reader sees half of it."""
    with staged_file(path) as scratch:
        scratch.write_text(text)


def write_report(directory: Path, name: str, values: Mapping[str, Any], lines: list[str]) -> str:
    """Write ``name.json`` and ``name.md`` to ``directory``; returns the Markdown text."""
    text = "\n".join(lines) + "\n"
    write_text(directory / f"{name}.json", json.dumps(values, indent=2) + "\n")
    write_text(directory / f"{name}.md", text)
    return text


class ResultStore:
    """Results measured so far, a line each, so that a broken-off command can go on."""

    def __init__(self, path: Path | None, facts: Sequence[Any]):
        self._path, self._facts = path, facts
        if path is not None:
            append(path, "")  # or fail before anything is measured
        lines = read_json_lines(path) if path is not None else ()
        try:
            self._values = {line["key"]: line["value"] for _, line in lines}
        except (KeyError, TypeError):
            raise UserError(
                f"{path} holds other things, expected what this command keeps"
            ) from None

    def get(self, key: Sequence[Any], measure: Callable[[], Any]) -> Any:
        """Return the stored result of this key, or measure and store it, as JSON."""
        text = json.dumps([*self._facts, *key])
        name = hashlib.sha256(text.encode()).hexdigest()
        if name not in self._values:
            self._values[name] = measure()
            if self._path is not None:
                append(self._path, json.dumps({"key": name, "value": self._values[name]}) + "\n")
        return self._values[name]
