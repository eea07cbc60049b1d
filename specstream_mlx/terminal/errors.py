"""Ends of commands: a user's mistake is one line on stderr and exit code 2, SIGTERM is code 143."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import UserError
from ..files import OF_WRITING, short
from .notes import note


class _Terminated(BaseException):
    """SIGTERM; no ``SystemExit``, which the import of a module may raise too."""


@contextmanager
def reported() -> Iterator[None]:
    """Run a command in the block: mistakes are reported, and SIGTERM and SIGINT unwind it."""
    try:
        with _unwound_by_sigterm(), _without_stray_warnings():
            yield
            sys.stdout.flush()  # else what is buffered fails where nobody can report it
    except _Terminated:
        raise SystemExit(128 + signal.SIGTERM) from None
    except UserError as error:
        _print_error(str(error))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:  # nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is buffered
        raise SystemExit(1) from None
    except OSError as error:
        _print_error(_file_error(error))
    else:
        return
    raise SystemExit(2)


@contextmanager
def _without_stray_warnings() -> Iterator[None]:
    """Leave out those of long texts, of missing PyTorch, of calls in libraries, of coremltools."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for name in ("transformers.tokenization_utils_base", "coremltools"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
        yield


def _file_error(error: OSError) -> str:
    if error.filename is not None:
        verb = " cannot be written" if error.errno in OF_WRITING else ""
        return f"{short(str(error.filename))}{verb}: {error.strerror}"
    if error.errno not in OF_WRITING:
        raise error
    sys.stdout = None  # else Python tries to write the rest of it when it ends
    return f"standard output cannot be written: {error.strerror}"


def _print_error(sentence: str) -> None:
    note(f"error: {' '.join(map(short, sentence.split()))}")


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


def _unwind(*_: Any) -> NoReturn:
    raise _Terminated


@contextmanager
def noted_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C ask for an end between two steps, and the second break off at once."""
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def note_it(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note_it)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
