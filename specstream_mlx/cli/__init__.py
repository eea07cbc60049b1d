"""The command line, ``specstream-mlx``: one module a command, imported when it is named."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from ..errors import UserError, shown
from ..terminal import commands
from ..terminal.errors import reported
from . import launched

NAME = "specstream-mlx"

COMMANDS: dict[str, str | dict[str, str]] = {
    "generate": "generate.generate",
    "chat": "chat.chat",
    "write": "write.write",
    "adapters": {
        "list": "adapters.list_adapters",
        "add": "adapters.add",
        "remove": "adapters.remove",
        "info": "adapters.info",
    },
    "convert": "convert.convert",
    "export-coreml": "export_coreml.export_coreml",
    "train": "train.train",
    "serve": "serve.serve",
    "writing-tools": "writing_tools.writing_tools",
    "benchmark": {
        "speedup": "benchmark.speedup",
        "quantization": "benchmark.quantization",
        "spec-bench": "benchmark.spec_bench",
    },
    "doctor": "doctor.doctor",
}

_ABOUT = {
    "": "Speculative Streaming for MLX: a language model that drafts for itself.",
    "adapters": "Adapters by name: list them, add or remove your own.",
    "benchmark": "Measure on this machine what drafting brings, and what fewer bits cost.",
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line, or ``words`` in its place."""
    _open_standard_streams()
    launched.silence_others()
    with reported():
        _main(list(sys.argv[1:] if words is None else words))


def _main(words: list[str]) -> None:
    known: Any = COMMANDS
    name = NAME
    while isinstance(known, dict):
        if not words or words[0] in ("-h", "--help"):
            _print_help(name, known)
            sys.exit(0 if words else 2)
        word, *words = words
        if word == "--version":
            print(f"{NAME} {version(NAME)}", flush=True)
            return
        if word not in known:
            raise UserError(
                f"{name} has no command {shown(word)}, expected one of {', '.join(known)}"
            )
        known, name = known[word], f"{name} {word}"
    with launched.together(name.removeprefix(f"{NAME} ")):
        commands.run(_function(known), words, name)


def _function(dotted: str) -> Any:
    module, _, function = dotted.partition(".")
    return getattr(import_module(f".{module}", __name__), function)


def _print_help(name: str, known: dict[str, Any]) -> None:
    """Print the commands, each with the first line of its help."""
    print(
        f"usage: {name} COMMAND [OPTIONS]\n\n{_ABOUT[name.removeprefix(NAME).strip()]}\n\ncommands:"
    )
    for word, command in known.items():
        about = _ABOUT.get(word) or str(_function(command).__doc__).strip().partition("\n")[0]
        print(fill(f"  {word:15} {about}", get_terminal_size().columns, subsequent_indent=18 * " "))
    print(f"\n`{name} COMMAND --help` says more.")


def _open_standard_streams() -> None:
    """Open what the caller closed, and never fail on a character that a terminal cannot show."""
    # A file that MLX opens must not get descriptor 0, which MLX takes for a failure.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
