"""The command line, ``specstream-mlx``: one module per command.

A command imports MLX when it runs, so that ``--help`` is quick.
"""

import os
import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..terminal.errors import reported
from . import adapters, benchmark, launched
from .chat import chat
from .convert import convert
from .doctor import doctor
from .export_coreml import export_coreml
from .generate import generate
from .serve import serve
from .train import train
from .write import write
from .writing_tools import writing_tools


class _Commands(TyperGroup):
    """Reports every mistake of the user as one line, in whichever command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with reported():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with reported(), launched.together():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        launched.check_command(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=False)(generate)
app.command(no_args_is_help=False)(chat)
app.command()(write)
app.add_typer(
    adapters.app, name="adapters", help="Adapters by name: list them, add or remove your own."
)
app.command()(convert)
app.command("export-coreml")(export_coreml)
app.command()(train)
app.command()(serve)
app.command()(writing_tools)
app.add_typer(
    benchmark.app,
    name="benchmark",
    help="Measure on this machine what drafting brings, and what fewer bits cost.",
)
app.command()(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"specstream-mlx {version('specstream-mlx')}", flush=True)
        raise typer.Exit()


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Speculative Streaming for MLX: a language model that drafts for itself."""


def _open_standard_streams() -> None:
    """Open what the caller closed, and never fail on a character that a terminal cannot show.

    A file that MLX opens must not get descriptor 0, which MLX takes for a failure.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    """Run the command line."""
    _open_standard_streams()
    launched.silence_others()
    app(prog_name="specstream-mlx")
