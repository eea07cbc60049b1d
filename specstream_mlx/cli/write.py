"""``specstream-mlx write``: one adapter as a filter, from standard input to standard output."""

from pathlib import Path
from textwrap import indent

from specstream_mlx.apps.writing_tools import tools

from ..errors import UserError
from ..files import prompt_text
from ..options import FILE, FLAG, MODEL, NAME, most_tokens, option
from ..terminal.notes import note
from .options import WEIGHTS, ModelOptions, standard_input


def write(
    *,
    adapter: str | None = option(
        None, NAME, "One of the tools below, or an adapter of yours.", positional=True
    ),
    file: Path | None = option(None, FILE, "The text. Default: standard input.", "--file", "-f"),
    as_json: bool = option(False, FLAG, "Print one JSON object, with figures.", "--json"),
    max_tokens: int = most_tokens(1024, "Tokens at most, of each part of the text."),
    model: str | None = option(None, MODEL, "The adapter's base. Default: smollm2."),
    take_all: bool = option(
        False, FLAG, "With proofread: make corrections that change what the text says, too."
    ),
    strict: bool = option(
        False, FLAG, "Refuse a text that the tool does not know, in place of saying so."
    ),
    weights: str = WEIGHTS,
) -> None:
    """Do one task with a text: read it, and write the result as it comes.

    Standard output has the result and nothing else. The tools that write a text anew get its
    paragraphs, side by side, so that line breaks, greetings and lists stay. proofread leaves out
    corrections that change a number, name, date, address or negation, or that add or drop words,
    and names them on standard error. sql reads CREATE TABLE statements, too. A running serve or
    writing-tools writes, if there is one, and the result begins at once. Exit codes: 0, all is
    written; 1, the result was cut off at --max-tokens; 2, something was wrong. Without a name it
    lists the tools.

    Examples:

        specstream-mlx write proofread < message.txt

        specstream-mlx write key_points --file dialogue.txt --json
    """
    if adapter is None:
        note(f"write NAME < FILE does one of these:\n\n{tools.listing()}")
        raise SystemExit(2)
    source = ModelOptions(model, adapter=adapter, weights=weights).source(quiet=True)
    text = standard_input() if file is None else prompt_text(file)
    if objection := tools.objection(source.adapter, text):
        if strict:
            raise UserError(objection)
        note(f"{objection}: what follows is made up")
    from specstream_mlx.apps.writing_tools.write import Task, write_text

    task = Task(adapter, source.adapter, text, take_all)
    write_text(source, task, max_tokens, as_json)
    if task.is_cut:
        note(f"The result was cut off at --max-tokens {max_tokens}")
        raise SystemExit(1)


_TOOLS = indent(f"Tools:\n\n{tools.listing()}", 4 * " ")
write.__doc__ = f"{write.__doc__}\n{_TOOLS}"
