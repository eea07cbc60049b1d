"""``specstream-mlx writing-tools``: the bundled adapters, on a page or in the terminal."""

import sys
from pathlib import Path

from ..files import decoded, prompt_text
from ..options import FILE, FLAG, TEXTS, integer, option
from .options import ModelOptions
from .serve import check_extra

_PAGE_ALONE = ("port", "no_browser")


def writing_tools(
    *,
    in_terminal: bool = option(
        False, FLAG, "Write here, without a page.", "--in-terminal", "-t", without=_PAGE_ALONE
    ),
    file: Path | None = option(
        None,
        FILE,
        "The text for the terminal. Default: what is piped in, or an example.",
        "--file",
        "-f",
        without=_PAGE_ALONE,
    ),
    tool: list[str] | None = option(
        None,
        TEXTS,
        "In the terminal, only this tool; may be given several times.",
        metavar="NAME",
        without=_PAGE_ALONE,
    ),
    port: int = option(0, integer(0, 65535), "The page's port. Default: a free one."),
    no_browser: bool = option(False, FLAG, "Print the page's address, and open no browser."),
) -> None:
    """Serve a page of writing tools to this machine: one base model, one small adapter per tool.

    It ends with Ctrl-C. With --in-terminal, --file or --tool there is no page: the tools write one
    text after the other here; sql and describe, which know forms of their own, only if they are
    named. In pipes, `write` does one of the tasks.

    Examples:

        specstream-mlx writing-tools --no-browser

        specstream-mlx writing-tools --in-terminal
    """
    if in_terminal or file is not None or tool is not None:
        _write_here(file, tool)
        return
    check_extra()
    from specstream_mlx.apps.writing_tools.local_page import show_page

    show_page(port, not no_browser)


def _write_here(file: Path | None, names: list[str] | None) -> None:
    """Write a file, what is piped in or an example with each tool."""
    from specstream_mlx.apps.writing_tools.write import chosen_tools, tasks_for, write_in_turn

    chosen, given = chosen_tools(names), None
    piped = b"" if file is not None or sys.stdin.isatty() else sys.stdin.buffer.read()
    if file is not None or piped.strip():
        given = prompt_text(file) if file else decoded(piped, "standard input")
    tasks = tasks_for(chosen, given)
    source = ModelOptions(None, adapter=tasks[0].name).source(quiet=True)
    write_in_turn(source, tasks, shows_text=given is None)
