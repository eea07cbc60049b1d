"""Progress of work: bars, which blocks may nest."""

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .notes import note

Item = TypeVar("Item")


class Show(Protocol):
    def __call__(self, done: float, total: float | None, description: str | None = None) -> None:
        """Show the work done, of a total if there is one; the first call sets the start."""


SECONDS = 2.0  # work that ends sooner shows nothing
SECONDS_BETWEEN_LINES = 60.0  # without a terminal: some work takes hours

_running: ContextVar[Progress | None] = ContextVar("_running", default=None)


@contextmanager
def progress(description: str) -> Iterator[Show]:
    """Show a bar while the block runs, on stderr; a line a minute where that is no terminal."""
    with _bars() as bars:
        task = bars.add_task(description, total=None)
        said, counts, last = description, False, time.monotonic()

        def show(done: float, total: float | None, description: str | None = None) -> None:
            nonlocal said, counts, task, last
            said = description or said
            if bars.disable and total and time.monotonic() - last >= SECONDS_BETWEEN_LINES:
                note(f"{said}: {done / total:.0%}")
                last = time.monotonic()
            if counts and total is not None:
                bars.update(task, completed=done, total=total, description=said)
                return
            bars.remove_task(task)  # rich does not take a total back, nor a start above 0
            task = bars.add_task(said, total=total, completed=int(done))
            counts = total is not None

        try:
            yield show
        finally:
            bars.remove_task(task)


def track(items: Collection[Item], description: str) -> Iterator[Item]:
    """Go through ``items`` under a bar."""
    with progress(description) as show:
        show(0, len(items))
        for number, item in enumerate(items, start=1):
            yield item
            show(number, len(items))


@contextmanager
def _bars() -> Iterator[Progress]:
    """The bars of the outermost block, which are shown once it has taken ``SECONDS``."""
    if (outer := _running.get()) is not None:
        yield outer
        return
    console = Console(file=sys.stderr)  # this one, though others replace it while they are noisy
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        redirect_stdout=False,  # what is printed there does not belong on stderr
        refresh_per_second=2,  # what is timed meanwhile is hardly disturbed
        disable=not (console.is_interactive and console.file.isatty()),
    )
    timer = Timer(SECONDS, bars.start)
    timer.daemon = True
    if not bars.disable:
        timer.start()
    token = _running.set(bars)
    try:
        yield bars
    finally:
        _running.reset(token)
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        bars.stop()
