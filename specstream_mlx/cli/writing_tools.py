"""``specstream-mlx writing-tools``: the bundled adapters, on a page or in turn in the terminal."""

import json
import sys
import webbrowser
from typing import TYPE_CHECKING

from ..errors import UserError
from ..options import FLAG, TEXT, TEXTS, integer, most_tokens, option
from ..terminal.notes import note
from .serve import check_extra

if TYPE_CHECKING:
    from specstream_mlx.apps.writing_tools.tools import Event

_MAX_TOKENS = 256


def writing_tools(
    *,
    text: str | None = option(
        None,
        TEXT,
        "The text; standard input where absent; from a terminal, or with its options, the page.",
        positional=True,
    ),
    tool: list[str] | None = option(
        None, TEXTS, "Only this tool; may be given several times.", metavar="NAME"
    ),
    max_tokens: int | None = most_tokens(
        None, f"Tokens per tool at most, of a text. Default: {_MAX_TOKENS}."
    ),
    as_json: bool = option(False, FLAG, "Print one JSON object per tool, a line each.", "--json"),
    port: int | None = option(None, integer(0, 65535), "The page's port. Default: a free one."),
    no_browser: bool = option(False, FLAG, "Print the page's address, and open no browser."),
) -> None:
    """Apply writing tools to a text: one resident base model, one small adapter per tool.

    Without a text it serves a page to this machine alone, until Ctrl-C. With one, every bundled
    adapter is applied in turn to it, and its result streams as it comes.

    Examples:

        specstream-mlx writing-tools "hi ana can you send me the sales report by friday"

        specstream-mlx writing-tools --tool proofread --tool summarize < message.txt
    """
    from specstream_mlx.apps.writing_tools.tools import (
        WritingTools,
        choose_tools,
        read_text,
        summary,
    )

    # Started in the background, the page has no terminal either.
    for_page = port is not None or no_browser or sys.stdin is None or sys.stdin.isatty()
    if text is None and for_page and not (tool or as_json):
        if max_tokens is not None:
            raise UserError("--max-tokens was given for the page, expected with a text")
        _serve_page(port or 0, no_browser)
        return
    for flag, given in (("--port", port is not None), ("--no-browser", no_browser)):
        if given:
            raise UserError(f"{flag} was given with a text, expected for the page")
    chosen = choose_tools(tool or ())
    content = read_text(text)
    tools = WritingTools()
    for name in chosen:
        events = tools.apply(content, name, max_tokens or _MAX_TOKENS)
        if as_json:
            print(json.dumps(summary(list(events))), flush=True)
            continue
        for event in events:
            _show(event)


def _serve_page(port: int, no_browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    check_extra()
    from specstream_mlx.apps.writing_tools.local_page import page_app

    from ..serve.run import listening, serve

    with listening("127.0.0.1", port) as opened:
        app = page_app()
        address = f"http://127.0.0.1:{opened.getsockname()[1]}/"
        note(f"Writing tools at {address} (Ctrl-C ends them)")
        if not no_browser:
            webbrowser.open(address)
        serve(app, opened)


def _show(event: "Event") -> None:
    """Print one event for people."""
    from rich.console import Console

    from specstream_mlx.apps.writing_tools.tools import ToolFinished, ToolStarted

    if isinstance(event, ToolStarted):
        swap = f"swapped in {event.swap_seconds * 1000:.0f} ms"
        Console(highlight=False).print(
            f"{event.tool}  ({swap}, {event.adapter_bytes / 1e6:.2f} MB)", style="bold"
        )
    elif isinstance(event, ToolFinished):
        rate = f"{event.generation_tps:.0f} tokens/s"
        length = f"{event.accepted_length:.2f} tokens per call"
        Console(highlight=False).print(f"\n{rate}, {length}\n", style="dim")
    else:
        print(event.text, end="", flush=True)
