"""``python -m apps.writing_tools TEXT``: every bundled adapter applied in turn to one text."""

import sys
from typing import Annotated

import typer

from specstream_mlx import UserError

from .tools import ToolFinished, ToolStarted, WritingTools, available_tools


def main(
    text: Annotated[str, typer.Argument(help="The text; standard input where absent.")] = "",
    tool: Annotated[list[str] | None, typer.Option(help="Only this tool; repeatable.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens per tool at most.", min=1)] = 256,
) -> None:
    """Apply writing tools to a text, one resident base model and one small adapter per tool.

    python -m apps.writing_tools --tool proofread "hi Ana can you sned me the reports on monday"
    """
    try:
        text = (text or sys.stdin.read()).strip()
        if not text:
            raise UserError("the text is empty, expected an argument or standard input")
        chosen = tool or available_tools()
        tools = WritingTools()
        for name in chosen:
            for event in tools.apply(text, name, max_tokens):
                if isinstance(event, ToolStarted):
                    note = f"swapped in {event.swap_seconds * 1000:.0f} ms"
                    size = f"{event.adapter_bytes / 1e6:.2f} MB"
                    typer.secho(f"{name}  ({note}, {size})", bold=True)
                elif isinstance(event, ToolFinished):
                    rate = f"{event.generation_tps:.0f} tokens/s"
                    length = f"{event.accepted_length:.2f} tokens per call"
                    typer.secho(f"\n{rate}, {length}\n", dim=True)
                else:
                    typer.echo(event.text, nl=False)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


if __name__ == "__main__":
    typer.run(main)
