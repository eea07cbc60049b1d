"""``specstream-mlx writing-tools``: the bundled adapters, on a page or in the terminal."""

import sys
import webbrowser
from pathlib import Path

from .. import bundled
from ..bundled import tools
from ..errors import UserError
from ..files import decoded, prompt_text
from ..options import FILE, FLAG, TEXTS, integer, option
from ..terminal.notes import note
from .options import ModelOptions
from .serve import check_extra
from .write import Task, in_order, note_left_out, written

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
    from specstream_mlx.apps.writing_tools.local_page import page_app

    from ..serve.run import listening, serve

    with listening("127.0.0.1", port) as opened:
        app = page_app()
        address = f"http://127.0.0.1:{opened.getsockname()[1]}/"
        note(f"Writing tools at {address} (Ctrl-C ends them)")
        if not no_browser:
            webbrowser.open(address)
        serve(app, opened)


def _write_here(file: Path | None, names: list[str] | None) -> None:
    """Print what each tool writes of a text, in the page's order."""
    present = {tool.name: tool for tool in tools.present()}
    for name in names or ():
        bundled.adapter_path(name)  # or a sentence says which there are
    chosen = [one for one in present.values() if (one.name in names if names else not one.form)]
    if not chosen:
        raise UserError("this installation has no bundled adapters")
    given = None
    piped = b"" if file is not None or sys.stdin.isatty() else sys.stdin.buffer.read()
    if file is not None or piped.strip():
        given = prompt_text(file) if file else decoded(piped, "standard input")
    tasks = []
    for one in chosen:
        text = given or (one if one.form else tools.TOOLS["proofread"]).example
        if one.form and (objection := one.objection(text)):
            raise UserError(objection)
        tasks.append(Task(one.name, bundled.adapter_path(one.name), text))
    source = ModelOptions(None, adapter=chosen[0].name).source(quiet=True)
    above: Task | None = None
    for task, new in in_order(tasks, written(source, tasks, 1024)):
        if task is not above:
            print("" if above is None else "\n\n", end="")
            if given is None and (above is None or task.text != above.text):
                print(f"An example\n{task.text}\n")
            print(task.name, flush=True)
        print(new, end="", flush=True)
        above = task
    print(flush=True)
    for task in tasks:
        note_left_out(task.left_out)
