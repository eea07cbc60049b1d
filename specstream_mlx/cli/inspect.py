"""``specstream-mlx inspect``: a directory's contents, for people or as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich.filesize import decimal
from typer import Argument

from ..options.fields import option
from ..options.kinds import PATH
from ..terminal.commands import grouped
from ..terminal.notes import note
from ..terminal.parsing import parser
from .options import JSON


@grouped()
def inspect(
    path: Annotated[
        Path,
        Argument(
            parser=parser(PATH),
            metavar="PATH",
            help="A base model or an adapter, converted or not.",
        ),
    ],
    *,
    model: Path | None = option(
        None, PATH, "An adapter's base. Default: the one that it names.", metavar="DIR"
    ),
    as_json: bool = JSON,
) -> None:
    """Show what a model or an adapter is made of, and whether they fit; no weights are read.

    [bold]Examples[/bold]

    [cyan]  specstream-mlx inspect llama-4bit[/cyan]

    [cyan]  specstream-mlx inspect llama-streams --model llama-4bit --json[/cyan]
    """
    show(path, model, as_json)


def show(path: Path, model: Path | None, as_json: bool) -> None:
    """Print what a directory is made of."""
    from ..inspection import inspect_directory

    description = inspect_directory(path, model)
    if as_json:
        print(json.dumps(description, indent=2))
        return
    base, adapter = description["base"], description["adapter"]
    if adapter is not None:
        _show(f"Adapter {adapter['path']}", _adapter_facts(adapter, base))
    if base is not None:
        _show(f"Base model {base['path']}", _base_facts(base))
    for sentence in description["notes"]:
        note(f"note: {sentence}")


def _base_facts(base: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **base,
        "refusal": None,  # a note
        "tied_head": "yes" if base["tied_head"] else "no",
        "parameters": f"{base['parameters']:,}",
        "stored_as": "; ".join(f"{n:,} at {kind}" for kind, n in base["stored_as"].items()),
        "bytes": decimal(base["bytes"], precision=2),
    }


def _adapter_facts(adapter: Mapping[str, Any], base: Mapping[str, Any] | None) -> dict[str, Any]:
    counts = {name: count for name, count in adapter["parameters"].items() if count}
    counts["in all"] = sum(counts.values())
    parameters = []
    for name, count in counts.items():
        share = f" ({count / base['parameters']:.3%} of the base)" if base else ""
        parameters.append(f"{name} {count:,}{share}")
    return {
        "format": adapter["format"],
        **(adapter["streams"] or {}),
        **adapter,
        "streams": None,  # shown field by field
        "lora_modules": ", ".join(adapter["lora_modules"]),
        "parameters": "\n".join(parameters),
        "bytes": decimal(adapter["bytes"], precision=2),
    }


def _show(title: str, facts: Mapping[str, Any]) -> None:
    """Print a table of names and values without empty ones."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None, show_header=False, title=title, title_justify="left", title_style="bold"
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value and name != "path":
            table.add_row(name, str(value))
    console = Console(highlight=False)
    console.print(table)
    console.print()
