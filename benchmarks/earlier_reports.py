"""Earlier reports of ``rivals``, whose rows a later one shows too.

So a report may have classes and temperatures that were measured at other times, or with other
numbers of texts; every such row says how it was measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specstream_mlx import UserError
from specstream_mlx.checked_files import read_json, read_json_lines
from specstream_mlx.config import is_integer, is_number

from .rival_texts import GROUPS
from .rivals_report import DEPTHS

SEPARATELY = "measured_separately"
"""What a row has that was measured elsewhere: machine, texts a class and tokens of a text."""

_SAME_FACTS = ("model", "weights")
_HOW = ("cpu", "per_class", "max_tokens")


@dataclass(frozen=True)
class EarlierReport:
    """The parts of an earlier report, a part being a class of texts at a temperature.

    Attributes:
        path: its JSON file.
        facts: its machine, model and numbers of texts.
        notes: what it says besides.
        rows, sizes: its figures.
        items: the figures of its texts, from the JSONL file beside it; empty: there is none.
    """

    path: Path
    facts: Mapping[str, Any]
    notes: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    sizes: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return is_integer(value) and value >= 0


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


_Fields = Mapping[str, Callable[[Any], bool]]

_PART: _Fields = {"class": _is_text, "temperature": is_number}
_ROW: _Fields = {
    **_PART,
    "group": lambda value: _is_text(value) and value in GROUPS,
    "method": _is_text,
    "nodes": _is_count_or_none,
    "items": _is_count,
    "tokens": _is_count,
    "calls": _is_count,
    "same_output_as_plain": _is_count,
    "same": lambda value: isinstance(value, bool),
    "accepted": lambda value: is_number(value) and value > 0,
    "depths": lambda value: (
        isinstance(value, list) and len(value) == DEPTHS and all(map(is_number, value))
    ),
}
_SIZE: _Fields = {
    "method": _is_text,
    "what": _is_text,
    "parameters": _is_count,
    "disk": _is_count_or_none,
    "resident": _is_count_or_none,
    "bytes_a_token": _is_count,
}
_TIMED = ("speedup", "low", "high", "decode_tps")


def read_reports(paths: Sequence[Path]) -> list[EarlierReport]:
    """Read earlier reports.

    Raises:
        UserError: a file cannot be read, or is no report of ``rivals``.
    """
    return [_read(path) for path in paths]


def _read(path: Path) -> EarlierReport:
    values = read_json(path)
    facts, notes = values.get("facts"), values.get("notes")
    rows, sizes = values.get("rows", ()), values.get("sizes", ())
    if not (
        isinstance(facts, dict)
        and {*_HOW, *_SAME_FACTS} <= facts.keys()
        and isinstance(notes, list)
        and all(map(_is_text, notes))
        and _fit(rows, _ROW)
        and all(is_number(row[name]) for row in rows for name in _TIMED if name in row)
        and _fit(sizes, _SIZE)
    ):
        raise UserError(f"{path} is none of this command's reports, expected rivals-*.json")
    beside = path.with_suffix(".jsonl")
    items = [item for _, item in read_json_lines(beside)] if beside.is_file() else []
    if not _fit(items, _PART):
        raise UserError(f"{beside} has other lines than this command writes")
    return EarlierReport(path, facts, notes, rows, sizes, items)


def _fit(rows: Any, fields: _Fields) -> bool:
    """Check that rows are a list of objects with these fields, each of its kind."""
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and row.keys() >= fields.keys()
        and all(fits(row[name]) for name, fits in fields.items())
        for row in rows
    )


def check_fit(
    reports: Sequence[EarlierReport],
    facts: Mapping[str, Any],
    sizes: Sequence[Mapping[str, Any]],
) -> None:
    """Check that earlier reports are of the model that is measured, and of the same heads.

    Args:
        reports: the earlier ones.
        facts, sizes: of the later one.

    Raises:
        UserError: one is not.
    """
    here = _parameters(sizes)
    for report in reports:
        for name in _SAME_FACTS:
            if report.facts[name] != facts[name]:
                raise UserError(
                    f"{report.path}: {name} is {report.facts[name]}, expected {facts[name]} as here"
                )
        there = _parameters(report.sizes)
        for method in here.keys() & there.keys():
            if there[method] != here[method]:
                raise UserError(
                    f"{report.path}: {method} has {there[method]} parameters, expected "
                    f"{here[method]} as here"
                )


def _parameters(sizes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Parameters of what was mounted, by name; what was only computed is left out."""
    return {size["method"]: size["parameters"] for size in sizes if size["disk"] is not None}


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
        Values and items of all.
    """
    rows, items = [*values["rows"]], [*items]
    notes, sizes = [*values["notes"]], [*values["sizes"]]
    for report in reports:
        known = {_part_of(row) for row in rows}
        how = {name: report.facts[name] for name in _HOW}
        new = [dict(row) for row in report.rows if _part_of(row) not in known]
        if not new:
            notes.append(f"{report.path.name} adds nothing: all of it was measured here.")
            continue
        for row in new:
            row.setdefault(SEPARATELY, how)
        rows += new
        items += [item for item in report.items if _part_of(item) not in known]
        named = {size["method"] for size in sizes}
        sizes += [size for size in report.sizes if size["method"] not in named]
        said = _said_of(report.rows)
        notes += [f"{report.path.name}: {note}" for note in report.notes if note not in said]
    notes += _said_of(rows)
    return dict(values) | {"rows": rows, "notes": notes, "sizes": sizes}, items


def _part_of(row: Mapping[str, Any]) -> tuple[str, float]:
    return row["class"], row["temperature"]


def _said_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say of rows that were measured separately, by class and temperature, how they were."""
    parts: dict[tuple[Any, ...], dict[str, None]] = {}
    for row in rows:
        if SEPARATELY in row:
            how = tuple(row[SEPARATELY][name] for name in _HOW)
            parts.setdefault((*how, row["temperature"]), {})[row["class"]] = None
    return [
        f"{', '.join(names)}{f' at temperature {temperature:g}' if temperature else ''}: measured "
        f"separately on {cpu}, {texts} texts a class, at most {tokens} tokens each."
        for (cpu, texts, tokens, temperature), names in parts.items()
    ]
