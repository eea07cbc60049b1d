"""Progress with a remaining time, on a terminal, of work that takes longer than two seconds.

Blocks may stand within blocks: their bars are then shown together, the outermost first.
"""

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from threading import Timer
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
)
from rich.text import Text

Item = TypeVar("Item")


class Show(Protocol):
    """Called with the work done and the work in all; the first call sets the start."""

    def __call__(self, done: float, total: float | None, description: str | None = None) -> None:
        """Show the work done; without a total the bar only moves."""


SECONDS = 2.0
"""Work that ends sooner shows nothing."""

_running: ContextVar[Progress | None] = ContextVar("_running", default=None)


@contextmanager
def progress(description: str) -> Iterator[Show]:
    """Show a bar while the block runs, on stderr; nothing where that is no terminal."""
    with _bars() as bars:
        task = bars.add_task(description, total=None, ends=None)
        begun: tuple[float, float] | None = None
        said = description

        def show(done: float, total: float | None, description: str | None = None) -> None:
            nonlocal begun, said, task
            said = description or said
            if total is None:  # which a bar that had one does not take
                begun = None
                bars.remove_task(task)
                task = bars.add_task(said, total=None, ends=None)
                return
            now = time.monotonic()
            begun = begun or (now, done)
            (start, first), ends = begun, None
            if done > first:
                ends = now + (now - start) * (total - done) / (done - first)
            bars.update(task, completed=done, total=total, description=description, ends=ends)

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


class _Remaining(ProgressColumn):
    """The remaining time, if the work goes on at its mean pace."""

    def render(self, task: Task) -> Text:
        if (ends := task.fields["ends"]) is None:
            return Text("-:--:--", style="progress.remaining")
        seconds = max(0, round(ends - time.monotonic()))
        return Text(f"{timedelta(seconds=seconds)} left", style="progress.remaining")


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
        _Remaining(),
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
