"""The worker: one thread that owns the models. Whatever MLX does is done there.

This is the seam between HTTP and decoding. ``submit`` takes texts to write, ``Job.deliver`` hands
back what becomes of each, on the worker's thread. Texts are decoded by turns, a step each; how, the
callers do not see.
"""

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..config import UserError
from ..hardware import device
from .decoding import Asked, Ended, Read, Written, decoded
from .prefixes import Prefixes

Event = Read | Written | Ended | Exception
"""What a client is told of its text; ``Ended`` or an exception is the last."""

_MEMORY = 16  # texts that the usual time of one is estimated from


class BusyError(Exception):
    """The queue is full.

    Attributes:
        retry_after: seconds after which there may be a place.
    """

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full, try again in {retry_after} s")
        self.retry_after = retry_after


class StoppedError(Exception):
    """The server is shutting down."""


@dataclass(eq=False)
class Job:
    """One text to write.

    Attributes:
        asked: what to write.
        deliver: called on the worker's thread with each event.
        left: whether nobody waits for it any more; see ``Worker.cancel``.
    """

    asked: Asked
    deliver: Callable[[Event], Any]
    left: bool = False


@dataclass(eq=False)
class _Text:
    """A job that is being decoded."""

    job: Job
    turns: Iterator[Read | Written | Ended]
    start: float
    reading: bool = True


class Worker:
    """A thread that decodes several texts by turns, and a queue of those that wait.

    Args:
        tokenizer: of the base.
        most_texts: decoded at a time.
        most_waiting: texts that may wait.
        kept_tokens: prompt tokens whose rows are kept for later prompts.
        base: an mlx-lm model whose weights stay wired; ``None``: none.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        most_texts: int = 4,
        most_waiting: int = 32,
        kept_tokens: int = 16384,
        base: Any = None,
    ):
        self._tokenizer, self._base = tokenizer, base
        self._most_texts, self._most_waiting = most_texts, most_waiting
        self._prefixes = Prefixes(kept_tokens)
        self._waiting: dict[str, deque[Job]] = {}  # by model; the one served last comes last
        self._texts: list[_Text] = []
        self._alone = True
        self._seconds: deque[float] = deque([1.0], maxlen=_MEMORY)
        self._changed, self._stopping = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    # Any thread ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Texts that wait."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    @property
    def decoding(self) -> int:
        """Texts that are being decoded."""
        return len(self._texts)

    @property
    def kept_tokens(self) -> int:
        """Prompt tokens whose rows are kept."""
        return self._prefixes.tokens

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put jobs into the queue, all or none.

        Raises:
            BusyError: so many cannot wait now.
            StoppedError: no more texts are written.
        """
        with self._changed:
            if self._stopping:
                raise StoppedError("the server is shutting down")
            free = self._most_waiting + max(0, self._most_texts - len(self._texts))
            if self.waiting + len(jobs) > free:
                usual = sum(self._seconds) / len(self._seconds)
                rounds = (self.waiting + len(self._texts)) / self._most_texts
                raise BusyError(max(1, math.ceil(usual * rounds / 2)))
            for job in jobs:
                self._waiting.setdefault(job.asked.name, deque()).append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Write a text no further; a place in the queue is free at once."""
        job.left = True
        with self._changed, suppress(KeyError, ValueError):  # it does not wait
            self._waiting[job.asked.name].remove(job)

    def stop(self) -> None:
        """End the thread; texts that are not complete end with a ``StoppedError``."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    # The worker's thread --------------------------------------------------------------------------

    def _run(self) -> None:
        streams: Any = [device.generation_stream]
        with device.wired_limit(self._base, streams):
            while self._next_round():
                for text in list(self._texts):
                    self._turn(text)
                self._alone = len(self._texts) < 2
        for text in self._texts:
            text.job.deliver(StoppedError("the server is shutting down"))
        for job in [job for jobs in self._waiting.values() for job in jobs]:
            job.deliver(StoppedError("the server is shutting down"))

    def _next_round(self) -> bool:
        """Wait for something to do; false: stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._texts or self.waiting)
            # One prompt is read at a time, so that the next one finds the rows of the last.
            reading = any(text.reading for text in self._texts)
            if not (self._stopping or reading or len(self._texts) >= self._most_texts):
                self._begin_next()
            return not self._stopping

    def _begin_next(self) -> None:
        """Begin a text of the model that has the fewest, of several the one served longest ago."""
        running = Counter(text.job.asked.name for text in self._texts)
        names = [name for name, jobs in self._waiting.items() if jobs]
        if not names:
            return
        name = min(names, key=lambda name: running[name])
        jobs = self._waiting.pop(name)
        job = jobs.popleft()
        self._waiting[name] = jobs
        turns = decoded(job.asked, self._tokenizer, self._prefixes, lambda: self._alone)
        self._texts.append(_Text(job, turns, time.monotonic()))
        self._alone = len(self._texts) == 1

    def _turn(self, text: _Text) -> None:
        """Let a text go one step further, and hand out what came of it."""
        event: Event | None = None
        if not text.job.left:
            try:
                event = next(text.turns)
            except UserError as error:
                event = error
            except Exception as error:  # a text that fails must not take the others along
                logging.getLogger(__name__).exception("a text failed")
                event = error
        if not isinstance(event, Read):
            text.reading = False
        if isinstance(event, Ended):
            self._seconds.append(time.monotonic() - text.start)
        if event is None or isinstance(event, Ended | Exception):
            text.turns.close()  # type: ignore[attr-defined]
            with self._changed:
                self._texts.remove(text)
        if event is not None:
            text.job.deliver(event)
