"""Runs the command line, and modules that are programs, in this process."""

from typer.testing import CliRunner

from specstream_mlx.cli import app
from specstream_mlx.terminal.commands import program


def run(*args, stdin=None):
    return CliRunner().invoke(app, [str(a) for a in args], input=stdin)


def result_of(main, *args, hidden=False):
    """The result of a module's command; ``hidden`` adds the options that help does not show."""
    built = program(main, hidden=hidden)
    return CliRunner().invoke(built, [str(a) for a in args], catch_exceptions=False)


def run_program(main, *args, hidden=False):
    """Run a module's command; an error that is no mistake of the user's shows where it was."""
    result = result_of(main, *args, hidden=hidden)
    assert result.exit_code == 0, result.output


def generate(base, *args, prompt="hello there", **kwargs):
    """``generate`` with the default drafts, not those that are fastest on this machine."""
    flags = ("--model", base, "-p", prompt, "-m", 12)
    return run("generate", *flags, *args, **kwargs)


def refusal(result):
    """The one sentence that the command ends with."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line
