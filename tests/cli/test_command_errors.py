"""Commands that are modules of their own: a user's mistake is one line and exit code 2."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from specstream_mlx import UserError
from specstream_mlx.cli.errors import one_line_errors

app = typer.Typer(add_completion=False)


@app.command()
@one_line_errors
def divide(by: Annotated[int, typer.Option(help="The divisor.")] = 1) -> None:
    """Divide six."""
    if not by:
        raise UserError("--by is 0,\nexpected another number")
    print(6 // by)


def test_options_and_help_are_the_command_s_own():
    assert CliRunner().invoke(app, ["--by", "2"]).stdout == "3\n"
    text = CliRunner().invoke(app, ["--help"]).output
    assert "Divide six." in text and "The divisor." in text


def test_a_mistake_of_the_user_is_one_line():
    result = CliRunner().invoke(app, ["--by", "0"])
    assert result.exit_code == 2
    assert (result.stdout, result.stderr) == ("", "error: --by is 0, expected another number\n")


def test_other_errors_stay_what_they_are():
    @one_line_errors
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
