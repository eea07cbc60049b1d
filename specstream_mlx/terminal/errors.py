"""Ends of commands: a user's mistake is one line on stderr and exit code 2, SIGTERM is code 143."""

import _thread
import logging
import os
import signal
import sys
import threading
import time
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
        with _unwound_by_sigterm(), _never_lost(), _without_stray_warnings():
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
    """Drop warnings about long texts, missing PyTorch, calls in libraries, and coremltools."""
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
def _never_lost() -> Iterator[None]:
    """Send a signal again that fell where Python can raise nothing, such as into a ``__del__``."""
    before, main = sys.unraisablehook, threading.main_thread().ident or 0
    lost: list[signal.Signals] = []

    def send() -> None:
        time.sleep(0.05)  # until the hook has returned, in which nothing can be raised either
        if lost:
            signal.pthread_kill(main, lost.pop())

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        for kind, number in ((KeyboardInterrupt, signal.SIGINT), (_Terminated, signal.SIGTERM)):
            if issubclass(unraisable.exc_type, kind):
                lost.append(number)
                _thread.start_new_thread(send, ())  # needs no lock that the main one may hold
                return
        before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        if lost:
            signal.raise_signal(lost.pop())


@contextmanager
def noted_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C stop between two steps, and the second at once."""
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
