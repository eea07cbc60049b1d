"""Where a benchmark's results go: a JSON file and the Markdown table made from it."""

import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results")


def machine_suffix(facts: dict[str, Any]) -> str:
    """The part of a file's name that tells machines apart, from ``device.describe()``."""
    return facts["machine"].lower().replace(" ", "-")


def measured_on(facts: dict[str, Any]) -> str:
    """Machine and software in a line, from ``device.describe()``."""
    return (
        f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']} on {facts['backend']}, "
        f"BLAS: {facts['blas']}"
    )


def write_text(path: Path, text: str) -> None:
    """Write a file so that no reader sees half of it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)


def write_results(directory: Path, name: str, values: dict[str, Any], table: str) -> None:
    """Write ``name.json`` and ``name.md`` to ``directory`` and print the table."""
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / f"{name}.json", json.dumps(values, indent=2) + "\n")
    write_text(directory / f"{name}.md", table)
    print(table)
