"""``specstream-mlx inspect``: what lies in a directory, for people or as JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..terminal.notes import note

if TYPE_CHECKING:
    from rich.table import Table

    from ..inspection.adapter import AdapterReport
    from ..inspection.base import BaseReport, TensorGroup
    from ..inspection.directory import Report


def inspect(
    path: Annotated[
        Path,
        Argument(metavar="PATH", help="A base model or an adapter, converted or not."),
    ],
    model: Annotated[
        Path | None,
        Option(metavar="DIR", help="An adapter's base. Default: the one that it names."),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show what a model or an adapter is made of, and what it costs; no weights are read.

    [bold]Examples[/bold]

    [cyan]  specstream-mlx inspect llama-4bit[/cyan]

    [cyan]  specstream-mlx inspect llama-streams --model llama-4bit --json[/cyan]
    """
    from ..inspection.directory import inspect_directory

    report = inspect_directory(path, model)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
        return
    _print(report)
    for sentence in report.notes:
        note(f"note: {sentence}")


def _print(report: "Report") -> None:
    from rich.console import Console

    base, adapter = report.base, report.adapter
    tables = []
    if adapter is not None:
        tables.append(_facts(f"Adapter {adapter.path}", _adapter_facts(adapter)))
        tables.append(_tensors(adapter.tensors))
    if base is not None:
        tables.append(_facts(f"Base model {base.path}", _base_facts(base)))
    if base is not None and adapter is None:
        tables.append(_tensors(base.tensors))
    console = Console(highlight=False)
    for table in tables:
        console.print(table)
        console.print()
    console.print(_cost(report))


def _facts(title: str, rows: list[tuple[str, str]]) -> "Table":
    from rich.table import Table

    table = Table(
        box=None, show_header=False, title=title, title_justify="left", title_style="bold"
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _base_facts(base: "BaseReport") -> list[tuple[str, str]]:
    rope = base.rope_type or "none, positions are learned"
    rope += "" if base.rope_theta is None else f", theta {base.rope_theta:g}"
    rope += "" if base.rope_factor is None else f", factor {base.rope_factor:g}"
    rows = [
        ("architecture", base.architecture + (" (not supported)" if base.refusal else "")),
        ("layers", str(base.num_hidden_layers)),
        ("hidden, MLP", f"{base.hidden_size}, {base.intermediate_size or 'unknown'}"),
        (
            "heads",
            f"{base.num_attention_heads} of {base.head_dim}, "
            f"keys and values {base.num_key_value_heads}",
        ),
        ("vocabulary", f"{base.vocab_size}, head {'tied' if base.tied_head else 'of its own'}"),
        ("context", "unknown" if base.context is None else f"{base.context} tokens"),
        ("rope", rope),
        ("on disk", f"{_bytes(base.bytes)} in {base.files} file{'s' if base.files > 1 else ''}"),
    ]
    packed = base.quantization
    if packed is None:
        rows.append(("dtype", ", ".join(sorted(base.dtypes))))
    else:
        layers = "; ".join(f"{count} layers at {kind}" for kind, count in packed.layers.items())
        kind = f"{packed.mode}, {'mixed: ' if packed.mixed else ''}{layers}"
        rows.append(("quantization", f"{kind}; {packed.bits_per_weight:.2f} bits per weight"))
    return [*rows, ("fingerprint", base.fingerprint)]


def _adapter_facts(adapter: "AdapterReport") -> list[tuple[str, str]]:
    rows = [("format", "MLX" if adapter.format == "mlx" else "PyTorch, not converted")]
    if adapter.streams is not None:
        config = adapter.streams
        last = config["num_hidden_layers"]
        first = last - config["num_msa_layers"]
        rows += [
            ("mode", config["mode"]),
            ("streams", f"{config['num_streams']}, seeded by {config['stream_init']}"),
            ("MSA layers", f"{config['num_msa_layers']}: {first} to {last - 1}, of {last}"),
            (
                "stream MLP",
                config["stream_mlp"]
                + (f", rank {r}" if (r := config["stream_adapter_rank"]) else ""),
            ),
            (
                "stream head",
                config["stream_head"]
                + (f", rank {r}" if (r := config["stream_head_rank"]) else "")
                + (f", over {n} tokens" if (n := config["draft_vocabulary"]) else ""),
            ),
            ("stream keys", f"the {n} likeliest" if (n := config["stream_keys"]) else "all"),
            (
                "pruner",
                f"rank {r}, {config['pruner_form']}" if (r := config["pruner_rank"]) else "none",
            ),
        ]
    if adapter.lora_modules:
        rows.append(
            (
                "LoRA",
                f"rank {adapter.lora_rank}, scale {adapter.lora_scale}: "
                + ", ".join(adapter.lora_modules),
            )
        )
    rows += [("base", adapter.base_model or "unnamed"), ("on disk", _bytes(adapter.bytes))]
    return rows


def _tensors(groups: "list[TensorGroup]") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("stored as", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    for group in groups:
        shape = " x ".join(str(size) for size in group.shape)
        table.add_row(group.name, shape, group.dtype, str(group.count))
    return table


def _cost(report: "Report") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    base, adapter, medusa = report.base, report.adapter, report.medusa
    rows = [("base", base.parameters)] if base else []
    if adapter is not None:
        parts = [(name, count) for name, count in adapter.parameters.items() if count]
        rows += [*parts, ("adapter in all", adapter.total_parameters)]
    if medusa is not None:
        rows.append((f"Medusa with {medusa.heads} heads would add", medusa.parameters))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("part")
    table.add_column("parameters", justify="right", no_wrap=True)
    if base is not None:
        table.add_column("of the base", justify="right", no_wrap=True)
    for name, count in rows:
        share = [f"{count / base.parameters:.3%}"] if base else []
        table.add_row(name, f"{count:,}", *share)
    return table


def _bytes(count: int) -> str:
    """A number of bytes with a decimal unit."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"
