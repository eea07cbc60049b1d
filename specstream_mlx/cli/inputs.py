"""Where the model, the adapter and the text of ``generate`` come from."""

import sys
from dataclasses import dataclass
from pathlib import Path

from .. import bundled
from ..config import UserError
from . import reporting


@dataclass(frozen=True)
class Source:
    """A model and an adapter, with the names that the user knows them by."""

    model: str | Path
    model_name: str
    adapter: Path | None
    adapter_name: str | None


def choose_source(model: str | None, adapter: str | None, adapter_path: Path | None) -> Source:
    """The model and the adapter that the options ask for.

    Without a model it is the bundled one, with its lossless streams if no adapter is named.

    Raises:
        UserError: both kinds of adapter, an unknown adapter, or no bundled model.
    """
    if adapter is not None and adapter_path is not None:
        raise UserError("--adapter and --adapter-path were both given, expected at most one")
    base = bundled.base_path() if model is None else model
    name = "bundled" if model is None else model
    if adapter is not None:
        return Source(base, name, bundled.adapter_path(adapter), adapter)
    if adapter_path is not None:
        return Source(base, name, adapter_path, str(adapter_path))
    if model is None:
        return Source(base, name, bundled.streams_path(), "streams")
    return Source(base, name, None, None)


def read_prompt(prompt: str) -> str:
    """The user's text, from standard input where ``prompt`` is ``-``; final newlines are dropped.

    Raises:
        UserError: the text is empty or is not UTF-8.
    """
    if prompt == "-":
        if sys.stdin.isatty():
            reporting.note("Reading the prompt from the terminal; Ctrl-D on a new line ends it")
        given, origin = sys.stdin.buffer.read(), "standard input"
    else:
        given, origin = prompt.encode(errors="surrogateescape"), "--prompt"
    try:
        text = given.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{origin} is not UTF-8 text: byte {given[error.start]:#04x} at {error.start}"
        ) from None
    text = text.rstrip("\r\n")
    if not text.strip():
        raise UserError(f"the prompt from {origin} is empty, expected some text")
    return text
