"""``specstream-mlx write``: one adapter as a filter, from standard input to standard output."""

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import Any

from ..bundled import tools
from ..corrections import Correction, careful
from ..errors import UserError
from ..files import decoded
from ..options import FILE, FLAG, MODEL, NAME, most_tokens, option
from ..serve import local
from ..terminal.notes import note
from ..terminal.progress import progress
from .options import WEIGHTS, ModelOptions, Source, standard_input


def write(
    *,
    adapter: str | None = option(
        None, NAME, "One of the tools below, or an adapter of yours.", positional=True
    ),
    file: Path | None = option(None, FILE, "The text. Default: standard input.", "--file", "-f"),
    as_json: bool = option(False, FLAG, "Print one JSON object, with figures.", "--json"),
    max_tokens: int = most_tokens(1024, "Tokens at most."),
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

    Standard output has the result and nothing else. proofread leaves out corrections that change a
    number, name, date, address or negation, or that add or drop words, and names them on standard
    error. A running serve or writing-tools writes, if there is one, and the result begins
    at once. Exit codes: 0, all is written; 1, the result was cut off at --max-tokens; 2, something
    was wrong. Without a name it lists the tools.

    Examples:

        specstream-mlx write proofread < message.txt

        specstream-mlx write key_points --file dialogue.txt --json
    """
    if adapter is None:
        note(f"write NAME < FILE does one of these:\n\n{tools.listing()}")
        raise SystemExit(2)
    source = ModelOptions(model, adapter=adapter, weights=weights).source(quiet=True)
    text = standard_input() if file is None else decoded(file.read_bytes(), str(file))
    if objection := tools.objection(source.adapter, text):
        if strict:
            raise UserError(objection)
        note(f"{objection}: what follows is made up")
    corrects = adapter == "proofread" and not take_all
    with progress("Reading the text") as show:
        served = None
        if source.adapter is not None and os.path.isdir(source.model):
            place = Path(source.model), adapter, source.adapter
            served = local.written(*place, text, max_tokens, show)
        responses = served or _by_itself(source, text, max_tokens, show)
        first = next(responses)
    written, left = "", list[Correction]()
    with progress("Writing") as show:
        for response in chain([first], responses):
            written += response.text
            if corrects or as_json:  # what a correction is shows in the end
                show(response.generation_tokens, max_tokens)
            else:
                print(response.text, end="", flush=True)
    if corrects:
        written, left = careful(text, written)
    if as_json:
        figures = {
            "adapter": adapter,
            "text": written,
            "left_out": [{"old": c.old, "new": c.text, "changes": c.meaning} for c in left],
            "finish_reason": response.finish_reason,
            "generation_tokens": response.generation_tokens,
            "generation_tps": response.generation_tps,
            "accepted_length": response.accepted_length,
        }
        print(json.dumps(figures), flush=True)
    else:
        print(written.rstrip() if corrects else "", flush=True)
    for one in left:
        old, new = one.old.strip(), one.text.strip()
        what = f"{new!r} in the place of {old!r}" if new else f"taking {old!r} out"
        note(f"Left as it was: {what} changes {one.meaning}")
    if response.finish_reason == "length":
        note(f"The result was cut off at --max-tokens {max_tokens}")
        raise SystemExit(1)


def _by_itself(source: Source, text: str, max_tokens: int, reading: Any) -> Iterator[local.Written]:
    """Load the model, and yield what it writes."""
    from ..generation import stream_generate
    from ..prompts import chat_prompt
    from ..responses import decoding_rate

    loaded, tokenizer = source.load()
    prompt = chat_prompt(tokenizer, text, loaded.prompt_template)
    limits: dict[str, Any] = {"max_tokens": max_tokens, "prompt_progress_callback": reading}
    for one in stream_generate(loaded, tokenizer, prompt, **limits):
        figures = one.finish_reason, one.accepted_length, decoding_rate(one)
        yield local.Written(one.text, one.generation_tokens, *figures)


_TOOLS = indent(f"Tools:\n\n{tools.listing()}", 4 * " ")
write.__doc__ = f"{write.__doc__}\n{_TOOLS}"
