"""``specstream-mlx adapters``: adapters by name, those of the package and the user's own."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from .. import bundled
from ..errors import UserError
from ..options import FLAG, PATH, TEXT, option
from ..terminal.notes import note
from .options import JSON, base_model

if TYPE_CHECKING:
    import mlx.core as mx

_MODEL = base_model("The base. Default: smollm2, the demonstration model.")
_NAME = option(..., TEXT, "The adapter's name.", metavar="NAME", positional=True)


def list_adapters(
    model: str | None = _MODEL,
    as_json: bool = JSON,
) -> None:
    """List the adapters and what they take, on disk and in memory, the base once.

    A damaged one is left out and told on stderr; the exit code is then 1.

    Examples:

        specstream-mlx adapters list
    """
    from ..adapters.description import describe
    from ..inspection import describe_adapter
    from ..loading import named_adapters

    base, dtype = _base(model)
    rows: list[dict[str, Any]] = []
    damaged = False
    for name, path in named_adapters().items():
        try:
            facts = describe_adapter(describe(path))
        except UserError as error:
            note(f"{name} is left out: {error}")
            damaged = True
            continue
        rows.append(
            {
                "name": name,
                "from": "the package" if path.is_relative_to(bundled.ROOT) else "you",
                "mode": _mode(facts),
                "bytes": facts["bytes"],
                "resident_bytes": dtype and sum(facts["parameters"].values()) * dtype.size,
            }
        )
    if as_json:
        print(json.dumps({"base": base, "adapters": rows}, indent=2))
    else:
        _print(base, rows)
    if damaged:
        raise SystemExit(1)


def _mode(facts: dict[str, Any]) -> str:
    """What an adapter is: LoRA, streams of a mode, or lossless ones for a LoRA."""
    if not facts["streams"]:
        return "LoRA"
    mode: str = facts["streams"]["mode"]
    return f"LoRA, {mode}" if mode == "lossless" and facts["parameters"].get("lora") else mode


def _print(base: dict[str, Any] | None, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("adapter", "from", "mode"):
        table.add_column(title, overflow="fold")
    for title in ("on disk", "in memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        sizes = (_size(row["bytes"]), _size(row["resident_bytes"]))
        table.add_row(row["name"], row["from"], row["mode"], *sizes)
    if base is not None:
        sizes = (_size(base["bytes"]), _size(base["resident_bytes"]))
        table.add_row("the base, once", "", base["name"], *sizes)
    Console(highlight=False).print(table)


def add(
    *,
    name: str = _NAME,
    directory: Path = option(
        ..., PATH, "Its directory, in MLX format.", metavar="DIR", positional=True
    ),
    model: str | None = _MODEL,
    replace: bool = option(False, FLAG, "Take the place of an adapter of that name."),
) -> None:
    """Keep an adapter under a name, by which every command then finds it.

    It is checked against its base and copied to the user's cache; --adapter NAME,
    `write NAME` and, for the demonstration model, `serve` know it from then on.

    Examples:

        specstream-mlx adapters add my-sql path/to/adapter --model path/to/mlx-model

        specstream-mlx adapters remove my-sql
    """
    from .. import demonstration
    from ..adapters.files import read_adapter
    from ..adapters.kept import check_name, keep_adapter
    from ..loading import model_directory, read_config, read_model

    check_name(name)
    if name in bundled.adapter_names():
        raise UserError(f"{name} is an adapter of the package, expected another name")
    path = model_directory(demonstration.model_path(model, note))
    base, _ = read_model(path, to_run=False)
    adapter = read_adapter(directory, base, read_config(path), full=True)
    place = keep_adapter(name, adapter, replace)
    note(f"{name} is kept in {place}")


def remove(name: str = _NAME) -> None:
    """Remove an adapter that was added."""
    from ..adapters.kept import drop_adapter

    if name in bundled.adapter_names():
        raise UserError(f"{name} is an adapter of the package, expected one that was added")
    drop_adapter(name)
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
        None, PATH, "An adapter's base. Default: the one that it names.", metavar="DIR"
    ),
    as_json: bool = JSON,
) -> None:
    """Show what an adapter or a base is made of, and whether they fit; no weights are read.

    Examples:

        specstream-mlx adapters info proofread

        specstream-mlx adapters info llama-streams --model llama-4bit --json
    """
    from ..inspection import inspect_directory
    from ..loading import adapter_named

    path = Path(name) if "/" in name or os.path.exists(name) else adapter_named(name)
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


def _base(model: str | None) -> "tuple[dict[str, Any] | None, mx.Dtype | None]":
    """The facts of a base, and the dtype that its adapters get; no weight is read.

    Both are ``None`` where the demonstration model is meant and is not there.
    """

    from .. import demonstration
    from ..adapters.lora import activations_dtype
    from ..hardware.weights import hold_weights
    from ..loading import model_directory, read_model, weight_files

    try:
        path = model_directory(demonstration.model_path(model, note))
    except UserError as error:
        if model is not None:
            raise
        note(f"note: {error}")
        return None, None
    base, _ = read_model(path, to_run=False)
    base, held = hold_weights(base)
    facts = {
        "name": demonstration.NAME if demonstration.is_meant(model) else str(path),
        "bytes": sum(file.stat().st_size for file in weight_files(path)),
        "resident_bytes": held.held_bytes,
    }
    return facts, activations_dtype(base)


def _size(count: int | None) -> str:
    return "?" if count is None else decimal(count, precision=2)
