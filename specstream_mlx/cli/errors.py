"""What becomes of a user's mistake: one line on stderr, and exit code 2."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from ..config import UserError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def print_error(sentence: str) -> None:
    """One line that says what the user gave and what was expected."""
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)


def one_line_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """``command`` for ``typer.run``, as in a module that is a command of its own."""

    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            print_error(str(error))
            raise typer.Exit(2) from None

    return run
