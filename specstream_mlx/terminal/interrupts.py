"""Ctrl-C as a wish to end between two steps."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
