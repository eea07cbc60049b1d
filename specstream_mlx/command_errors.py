"""What becomes of a user's mistake in a command that is a module of its own, as a benchmark is."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from .config import UserError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def one_line_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """``command`` for ``typer.run``: a ``UserError`` is one line on stderr, and exit code 2."""

    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None

    return run
