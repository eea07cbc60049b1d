"""How commands end: a user's mistake is one line on stderr and exit code 2, SIGTERM is code 143."""

import errno
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import NoReturn, ParamSpec, TypeVar

import typer

from ..checked_files import short
from ..config import UserError
from .stray_warnings import without_stray_warnings

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class _Terminated(BaseException):
    """SIGTERM has come. No ``SystemExit``: that may come of the import of a module too."""


@contextmanager
def reported() -> Iterator[None]:
    """Run a command in the block: its mistakes are reported, and SIGTERM unwinds it.

    Whatever is half-written then is removed, as it is after SIGINT, which typer reports as 130.
    Stray warnings of libraries are left out.
    """
    try:
        with _unwound_by_sigterm(), without_stray_warnings():
            yield
            sys.stdout.flush()  # else what is buffered fails where nobody can report it
    except _Terminated:
        raise SystemExit(128 + signal.SIGTERM) from None
    except UserError as error:
        _print_error(str(error))
    except typer.TyperException as error:
        _print_error(error.format_message().replace("Value error, ", ""))  # pydantic's own words
    except OSError as error:
        _print_error(file_error(error))
    else:
        return
    raise typer.Exit(2)


def file_error(error: OSError) -> str:
    """What the operating system says about a file that the user named, or about the output.

    Of some errors it is known that something was being written. Files of ours are written within
    ``staging``, which names them, so where there is no name it was standard output.

    Raises:
        OSError: the same, where it is about neither, as with a pipe that is closed.
    """
    if error.errno in _OF_WRITING:
        name = error.filename
        where = "standard output" if name is None else short(str(name))
        if name is None:
            sys.stdout = None  # else Python tries to write the rest of it when it ends
        return f"{where} cannot be written: {error.strerror}"
    if error.filename is None:
        raise error
    return f"{short(str(error.filename))}: {error.strerror}"


def one_line_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """``command`` for ``typer.run``, as in a module that is a command of its own."""

    @wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with reported():
            return command(*args, **kwargs)

    return run


def _print_error(sentence: str) -> None:
    """One line that says what the user gave and what was expected."""
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    raise _Terminated
