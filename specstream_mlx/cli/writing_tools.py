"""``specstream-mlx writing-tools``: every bundled adapter applied in turn to one text."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ..options.kinds import integer
from ..terminal.commands import of_kind

if TYPE_CHECKING:
    from specstream_mlx.apps.writing_tools.tools import Event


def writing_tools(
    text: Annotated[
        str | None,
        Argument(help="The text; standard input where absent.", show_default=False),
    ] = None,
    tool: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Only this tool; may be given several times."),
    ] = None,
    max_tokens: Annotated[
        int, of_kind(integer(1), "Tokens per tool at most.", "--max-tokens", "-m")
    ] = 256,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object per tool, a line each.")
    ] = False,
) -> None:
    """Apply writing tools to a text: one resident base model, one small adapter per tool.

    Every bundled adapter is applied in turn to the same text, and its result streams as it comes.

    [bold]Examples[/bold]

    [cyan]  specstream-mlx writing-tools "hi ana can you send me the sales report by friday"[/cyan]

    [cyan]  specstream-mlx writing-tools --tool proofread --tool summarize < message.txt[/cyan]
    """
    from specstream_mlx.apps.writing_tools.tools import (
        WritingTools,
        choose_tools,
        read_text,
        summary,
    )

    chosen = choose_tools(tool or ())
    content = read_text(text)
    tools = WritingTools()
    for name in chosen:
        events = tools.apply(content, name, max_tokens)
        if as_json:
            print(json.dumps(summary(list(events))), flush=True)
            continue
        for event in events:
            _show(event)


def _show(event: "Event") -> None:
    """Print one event for people."""
    from specstream_mlx.apps.writing_tools.tools import ToolFinished, ToolStarted

    if isinstance(event, ToolStarted):
        swap = f"swapped in {event.swap_seconds * 1000:.0f} ms"
        typer.secho(f"{event.tool}  ({swap}, {event.adapter_bytes / 1e6:.2f} MB)", bold=True)
    elif isinstance(event, ToolFinished):
        rate = f"{event.generation_tps:.0f} tokens/s"
        length = f"{event.accepted_length:.2f} tokens per call"
        typer.secho(f"\n{rate}, {length}\n", dim=True)
    else:
        typer.echo(event.text, nl=False)
