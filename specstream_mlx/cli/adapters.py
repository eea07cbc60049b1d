"""``specstream-mlx adapters``: adapters by name, those of the package and the user's own."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from rich.filesize import decimal

from specstream_mlx.apps.writing_tools import tools

from .. import bundled, demonstration
from ..adapters.description import describe
from ..adapters.user_adapters import add_adapter, check_name, remove_adapter
from ..errors import UserError
from ..files import short
from ..loading.inspection import describe_adapter, inspect_directory
from ..loading.model_paths import adapter_named, model_directory, named_adapters, read_config
from ..options import DIRECTORY, FLAG, MODEL, NAME, TEXT, option
from ..terminal.notes import note
from .options import JSON, ModelOptions

_NAME = option(..., NAME, "The adapter's name.", positional=True)


def list_adapters(as_json: bool = JSON) -> None:
    """List the adapters: what each is for, an example, how often it is right, its size on disk.

    Yours are listed with their bases, which --model names.

    A damaged one is left out with a note on stderr; the exit code is then 1.

    Examples:

        specstream-mlx adapters list
    """
    rows: list[dict[str, Any]] = []
    damaged = False
    for name, path in named_adapters().items():
        try:
            facts = describe_adapter(describe(path))
        except UserError as error:
            note(f"{name} is left out: {error}")
            damaged = True
            continue
        mode = facts["streams"]["mode"] if facts["streams"] else "LoRA"
        if mode == "lossless" and facts["parameters"].get("lora"):
            mode = "LoRA, lossless"
        origin = "the package" if path.is_relative_to(bundled.ROOT) else "you"
        tool = tools.tool_at(path)
        row = {"name": name, "from": origin, "mode": mode, "bytes": facts["bytes"]}
        row["base_model"] = facts["base_model"]
        rows.append(row | {"tool": tool and tool.facts()})
        if not as_json:
            size = f"{mode}, {decimal(facts['bytes'])} on disk"
            own = f"Yours: {size}, for {short(facts['base_model']) or 'a base without a name'}"
            print(f"{tool.text}\n{14 * ' '}{size}" if tool else tools.in_lines(name, own))
    if as_json:
        print(json.dumps({"adapters": rows}, indent=2))
    else:
        print(f"\n{fill(tools.MEMORY, min(96, get_terminal_size().columns))}")
    if damaged:
        raise SystemExit(1)


def add(
    *,
    name: str = _NAME,
    directory: Path = option(..., DIRECTORY, "Its directory, in MLX format.", positional=True),
    model: str | None = option(None, MODEL, "The base. Default: smollm2."),
    replace: bool = option(False, FLAG, "Replace an adapter of that name."),
) -> None:
    """Add an adapter under a name, by which every command can find it.

    It is checked against its base and copied to the user's cache. Then you can use it in
    --adapter NAME, `write NAME` and, for the demonstration model, `serve`.

    Examples:

        specstream-mlx adapters add my-sql path/to/adapter --model path/to/mlx-model

        specstream-mlx adapters remove my-sql
    """
    check_name(name)
    if name in bundled.adapter_names():
        raise UserError(f"{name} is an adapter of the package, expected another name")
    ModelOptions(model, adapter_path=directory).check()
    from ..adapters.files import read_adapter
    from ..loading.load import read_model

    path = model_directory(demonstration.model_path(model, note))
    base, _ = read_model(path, to_run=False)
    adapter = read_adapter(directory, base, read_config(path), full=True)
    named = demonstration.REPOSITORY if model is None or demonstration.is_meant(model) else model
    named = os.path.abspath(named) if os.path.exists(named) else named
    kept = add_adapter(name, adapter, named, replace)
    note(f"{name} is kept in {kept}")


def remove(name: str = _NAME) -> None:
    """Remove an adapter that was added."""
    if name in bundled.adapter_names():
        raise UserError(f"{name} is an adapter of the package, expected one that was added")
    remove_adapter(name)
    note(f"{name} is removed")


def info(
    *,
    name: str = option(
        ...,
        TEXT,
        "An adapter's name, or the directory of an adapter or a base, converted or not.",
        metavar="NAME|DIR",
        positional=True,
    ),
    model: Path | None = option(
        None, DIRECTORY, "An adapter's base. Default: the one that it names."
    ),
    as_json: bool = JSON,
) -> None:
    """Show what an adapter or a base is made of, and whether they fit; no weights are read.

    Examples:

        specstream-mlx adapters info proofread

        specstream-mlx adapters info streams --model my-model --json
    """
    path = Path(name) if "/" in name or os.path.exists(name) else adapter_named(name)
    if model is None and path.is_relative_to(bundled.ROOT):
        base = demonstration.directory()
        model = base if (base / "config.json").exists() else None
    tool = tools.tool_at(path)
    description = inspect_directory(path, model) | {"tool": tool and tool.facts()}
    if as_json:
        print(json.dumps(description, indent=2))
        return
    if tool:
        print(f"{tool.text}\n")
    base, adapter = description["base"], description["adapter"]
    if adapter is not None:
        parameters = []
        counts = {name: count for name, count in adapter["parameters"].items() if count}
        for part, count in (counts | {"in all": sum(counts.values())}).items():
            share = f" ({count / base['parameters']:.3%} of the base)" if base else ""
            parameters.append(f"{part} {count:,}{share}")
        shown = {"format": adapter["format"], **(adapter["streams"] or {}), **adapter}
        shown |= {"streams": None, "lora_modules": ", ".join(adapter["lora_modules"])}
        _show(f"Adapter {adapter['path']}", shown | {"parameters": "\n".join(parameters)})
    if base is not None:
        stored = (f"{count:,} at {kind}" for kind, count in base["stored_as"].items())
        words = {"refusal": None, "tied_head": "yes" if base["tied_head"] else "no"}
        words |= {"parameters": f"{base['parameters']:,}", "stored_as": "; ".join(stored)}
        _show(f"Base model {base['path']}", base | words)
    for sentence in description["notes"]:
        note(f"note: {sentence}")


def _show(title: str, facts: Mapping[str, Any]) -> None:
    """Print a table of names and values, without empty values."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, title=title, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    facts = {**facts, "bytes": decimal(facts["bytes"], precision=2), "path": None}
    for name, value in facts.items():
        if value:
            table.add_row(name, str(value))
    Console(highlight=False).print(table, "")
