"""Ends of commands: a user's mistake is one line on stderr and exit code 2, SIGTERM is code 143."""

import errno
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ..errors import UserError
from ..files import short

_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class _Terminated(BaseException):
    """SIGTERM. It is no ``SystemExit``, which the import of a module may raise too."""


@contextmanager
def reported() -> Iterator[None]:
    """Run a command in the block: its mistakes are reported, and SIGTERM unwinds it.

    Half-written files are then removed, as after SIGINT (code 130). Stray warnings of libraries are
    left out. Where nobody reads the output any more, the code is 1.
    """
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
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is buffered
        raise SystemExit(1) from None
    except OSError as error:
        _print_error(_file_error(error))
    else:
        return
    raise SystemExit(2)


@contextmanager
def _without_stray_warnings() -> Iterator[None]:
    """Run a command in the block without them; all other warnings are shown.

    They are of a text longer than the tokenizer's maximum (prompts are checked against the model's
    context), of missing PyTorch, of calls in libraries, and of coremltools off the Mac.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for name in ("transformers.tokenization_utils_base", "coremltools"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
        yield


def _file_error(error: OSError) -> str:
    """Say what went wrong with a file, or, where none is named, with the output."""
    if error.filename is not None:
        verb = " cannot be written" if error.errno in _OF_WRITING else ""
        return f"{short(str(error.filename))}{verb}: {error.strerror}"
    if error.errno not in _OF_WRITING:
        raise error
    sys.stdout = None  # else Python tries to write the rest of it when it ends
    return f"standard output cannot be written: {error.strerror}"


def _print_error(sentence: str) -> None:
    """Print the error in one line, in which a name longer than any file's is cut."""
    print(f"error: {' '.join(map(short, sentence.split()))}", file=sys.stderr)


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
