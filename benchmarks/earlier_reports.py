"""Earlier reports of ``rivals``, whose rows a later one shows too.

So a report may have classes and temperatures that were measured at other times, or with other
numbers of texts; it says which.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specstream_mlx import UserError
from specstream_mlx.checked_files import read_json, read_json_lines

_PART = ("class", "temperature")
_SAME_FACTS = ("model", "weights")
_ROW = (
    *("group", "class", "task", "mode", "temperature", "method", "nodes", "items", "tokens"),
    *("calls", "same_output_as_plain", "same", "accepted", "depths"),
)


@dataclass(frozen=True)
class EarlierReport:
    """The parts of an earlier report, a part being a class of texts at a temperature.

    Attributes:
        path: its JSON file.
        facts: its machine, model and numbers of texts.
        rows, sizes: its figures.
        items: the figures of its texts, from the JSONL file beside it; empty: there is none.
    """

    path: Path
    facts: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    sizes: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]


def read_reports(paths: Sequence[Path]) -> list[EarlierReport]:
    """Read earlier reports.

    Raises:
        UserError: a file cannot be read, or is no report of ``rivals``.
    """
    return [_read(path) for path in paths]


def _read(path: Path) -> EarlierReport:
    values = read_json(path)
    facts, rows, sizes = values.get("facts"), values.get("rows", ()), values.get("sizes", ())
    if not (
        isinstance(facts, dict)
        and {"per_class", "max_tokens", "cpu", *_SAME_FACTS} <= facts.keys()
        and _are_rows(rows, _ROW)
        and _are_rows(sizes, ("method", "parameters"))
    ):
        raise UserError(f"{path} is none of this command's reports, expected rivals-*.json")
    beside = path.with_suffix(".jsonl")
    items = [item for _, item in read_json_lines(beside)] if beside.is_file() else []
    if not _are_rows(items, _PART):
        raise UserError(f"{beside} has other lines than this command writes")
    return EarlierReport(path, facts, rows, sizes, items)


def _are_rows(values: Any, names: Collection[str]) -> bool:
    return isinstance(values, list) and all(
        isinstance(row, dict) and row.keys() >= set(names) for row in values
    )


def check_same_model(reports: Sequence[EarlierReport], facts: Mapping[str, Any]) -> None:
    """Check that earlier reports are of the model that is measured, in the same bits.

    Args:
        reports: the earlier ones.
        facts: of the later one.

    Raises:
        UserError: one is not.
    """
    for report in reports:
        for name in _SAME_FACTS:
            if report.facts[name] != facts[name]:
                raise UserError(
                    f"{report.path}: {name} is {report.facts[name]}, expected {facts[name]} as here"
                )


def added_to(
    values: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    reports: Sequence[EarlierReport],
) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Add the parts of earlier reports that a report does not have, the first of them first.

    Args:
        values: of the report's JSON file; its means are to be computed behind this.
        items: the figures of its texts.
        reports: the earlier ones.

    Returns:
        Values and items of all; a note says which rows were measured otherwise.
    """
    rows, items = [*values["rows"]], [*items]
    notes, sizes = [*values["notes"]], [*values["sizes"]]
    for report in reports:
        known = {_part_of(row) for row in rows}
        new = [row for row in report.rows if _part_of(row) not in known]
        rows += new
        items += [item for item in report.items if _part_of(item) not in known]
        named = {size["method"] for size in sizes}
        sizes += [size for size in report.sizes if size["method"] not in named]
        if new:
            notes.append(_said_of(new, report.facts))
    return dict(values) | {"rows": rows, "notes": notes, "sizes": sizes}, items


def _part_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _PART)


def _said_of(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Say of rows, named by class and temperature, how they were measured."""
    found = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        own = dict.fromkeys(row["class"] for row in rows if row["temperature"] == temperature)
        at = f" at temperature {temperature:g}" if temperature else ""
        found.append(", ".join(own) + at)
    return (
        f"{'; '.join(found)}: measured separately on {facts['cpu']}, {facts['per_class']} texts a "
        f"class, at most {facts['max_tokens']} tokens each."
    )
