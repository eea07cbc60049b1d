"""Progress of work: bars, which blocks may nest."""

import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any, Protocol, TypeVar

from .notes import note

Item = TypeVar("Item")


class Show(Protocol):
    def __call__(self, done: float, total: float | None, description: str | None = None) -> None:
        """Show the work done, of a total if there is one; the first call sets the start."""


SECONDS = 2.0  # work that ends sooner shows nothing
SECONDS_BETWEEN_LINES = 60.0  # without a terminal: some work takes hours

_running: ContextVar["_Bars | None"] = ContextVar("_running", default=None)


@contextmanager
def progress(description: str) -> Iterator[Show]:
    """Show a bar while the block runs, on stderr; a line a minute where that is no terminal."""
    with _bars() as bars:
        task, said, last = bars.add(_Task(description)), description, time.monotonic()
        in_lines = False

        def show(done: float, total: float | None, description: str | None = None) -> None:
            nonlocal said, task, last, in_lines
            said = description or said
            late = time.monotonic() - last >= SECONDS_BETWEEN_LINES
            if bars.hidden and total and (late or (in_lines and done >= total)):
                note(f"{said}: {done / total:.0%}")
                last, in_lines = (
                    time.monotonic(),
                    done < total,
                )  # the last line says that all is done
            if task.total is not None and total is not None:
                bars.update(task, description=said, completed=done, total=total)
                return
            bars.remove(task)  # rich does not take a total back, nor a start above 0
            task = bars.add(_Task(said, total, int(done)))

        try:
            yield show
        finally:
            bars.remove(task)


def track(items: Collection[Item], description: str) -> Iterator[Item]:
    """Go through ``items`` under a bar."""
    with progress(description) as show:
        show(0, len(items))
        for number, item in enumerate(items, start=1):
            yield item
            show(number, len(items))


@dataclass(eq=False)
class _Task:
    description: str
    total: float | None = None
    completed: float = 0
    number: Any = None  # rich's


class _Bars:
    """The bars of nested blocks; rich, whose import is slow, is loaded when they first show."""

    def __init__(self) -> None:
        self._file = sys.stderr  # this one, though others replace it while they are noisy
        self.hidden = not self._file.isatty() or os.environ.get("TERM") in ("dumb", "unknown")
        self._tasks = list[_Task]()
        self._shown: Any = None
        self._lock = Lock()

    def add(self, task: _Task) -> _Task:
        with self._lock:
            self._tasks.append(task)
            self._show(task)
        return task

    def update(self, task: _Task, **changes: Any) -> None:
        with self._lock:
            vars(task).update(changes)
            if self._shown is not None:
                self._shown.update(task.number, **changes)

    def remove(self, task: _Task) -> None:
        with self._lock:
            self._tasks.remove(task)
            if self._shown is not None:
                self._shown.remove_task(task.number)

    def _show(self, task: _Task) -> None:
        if self._shown is not None:
            fields = {"total": task.total, "completed": int(task.completed)}
            task.number = self._shown.add_task(task.description, **fields)

    def start(self) -> None:
        from rich import progress as rich
        from rich.console import Console

        with self._lock:
            self._shown = rich.Progress(
                rich.TextColumn("{task.description}"),
                rich.BarColumn(bar_width=20),
                rich.TaskProgressColumn(),
                rich.TimeRemainingColumn(),
                rich.TextColumn("left"),
                console=Console(file=self._file),
                transient=True,
                redirect_stdout=False,  # what is printed there does not belong on stderr
                refresh_per_second=2,  # what is timed meanwhile is hardly disturbed
            )
            for task in self._tasks:
                self._show(task)
            self._shown.start()

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()


@contextmanager
def _bars() -> Iterator[_Bars]:
    """The bars of the outermost block, which are shown once it has taken ``SECONDS``."""
    if (outer := _running.get()) is not None:
        yield outer
        return
    bars = _Bars()
    timer = Timer(SECONDS, bars.start)
    timer.daemon = True
    if not bars.hidden:
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
