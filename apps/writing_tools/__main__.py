"""``python -m apps.writing_tools TEXT``: every bundled adapter applied in turn to one text.

An installed package has it as ``python -m specstream_mlx.apps.writing_tools``.
"""

import json
import os
import sys
from typing import Annotated

import typer

from specstream_mlx.cli.errors import one_line_errors

from .tools import Event, ToolFinished, ToolStarted, WritingTools, choose_tools, read_text, summary

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command()
@one_line_errors
def main(
    text: Annotated[
        str | None,
        typer.Argument(help="The text; standard input where absent.", show_default=False),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this tool; may be given several times."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens per tool at most.", min=1)
    ] = 256,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per tool, a line each.")
    ] = False,
) -> None:
    """Apply writing tools to a text: one resident base model, one small adapter per tool.

    Every bundled adapter is applied in turn to the same text, and its result streams as it comes.

    [bold]Examples[/bold]

    [cyan]  python -m apps.writing_tools "hi Ana can you sned me the reports on monday"[/cyan]

    [cyan]  python -m apps.writing_tools --tool proofread --tool summarize < message.txt[/cyan]
    """
    try:
        chosen = choose_tools(tool or ())
        content = read_text(text)
        tools = WritingTools()
        for name in chosen:
            events = tools.apply(content, name, max_tokens)
            if as_json:
                typer.echo(json.dumps(summary(list(events))))
                continue
            for event in events:
                show(event)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def show(event: Event) -> None:
    """Print one event for people."""
    if isinstance(event, ToolStarted):
        swap = f"swapped in {event.swap_seconds * 1000:.0f} ms"
        typer.secho(f"{event.tool}  ({swap}, {event.adapter_bytes / 1e6:.2f} MB)", bold=True)
    elif isinstance(event, ToolFinished):
        rate = f"{event.generation_tps:.0f} tokens/s"
        length = f"{event.accepted_length:.2f} tokens per call"
        typer.secho(f"\n{rate}, {length}\n", dim=True)
    else:
        typer.echo(event.text, nl=False)


if __name__ == "__main__":
    if sys.stdin is None:  # else MLX's file gets descriptor 0, which it takes for a failure
        sys.stdin = open(os.devnull)  # noqa: SIM115
    app()
