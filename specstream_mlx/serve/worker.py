"""The worker: one thread that owns the models. Whatever MLX does is done there.

This is the seam between HTTP and decoding. ``submit`` takes texts to write, ``Job.deliver`` hands
back what becomes of each, on the worker's thread. Texts of one model are decoded in one pass, those
of several models by turns, a step each; the callers see nothing of it.
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

from ..errors import UserError
from ..hardware import device
from .decoding import Asked, Batch, Ended, Read, Writing, Written, tell
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


class Worker:
    """A thread that decodes several texts at a time, and a queue of those that wait.

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
        self._texts: dict[Writing, Job] = {}
        self._reading: tuple[Writing, Iterator[Read]] | None = None
        self._batches: list[Batch] = []
        self._alone, self._crowd = True, 0
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
        """Put jobs into the queue, all or none."""
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
        with device.wired(self._base):
            while self._next_round():
                for writing in [one for one, job in self._texts.items() if job.left]:
                    self._drop(writing)
                self._read_on()
                for batch in list(self._batches):
                    self._step(batch)
            for batch in self._batches:
                batch.close()
        for job in [
            *self._texts.values(),
            *(job for jobs in self._waiting.values() for job in jobs),
        ]:
            job.deliver(StoppedError("the server is shutting down"))

    def _next_round(self) -> bool:
        """Wait for something to do; false: stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._texts or self.waiting)
            # One prompt is read at a time, so that the next one finds the rows of the last.
            if not (self._stopping or self._reading or len(self._texts) >= self._most_texts):
                self._begin_next()
            # A step's time goes from its turn in the last round to that in this one.
            self._alone = max(self._crowd, len(self._texts)) < 2
            self._crowd = len(self._texts)
            return not self._stopping

    def _begin_next(self) -> None:
        """Begin a text of the model that has the fewest, of several the one served longest ago."""
        running = Counter(job.asked.name for job in self._texts.values())
        names = [name for name, jobs in self._waiting.items() if jobs]
        if not names:
            return
        name = min(names, key=lambda name: running[name])
        jobs = self._waiting.pop(name)
        job = jobs.popleft()
        self._waiting[name] = jobs
        asked = job.asked
        writing = Writing(asked, self._tokenizer, self._prefixes, lambda: self._alone)
        own = writing.number, asked.name, asked.prompt, asked.max_tokens
        tell(asked.model, "begin", *own)
        self._texts[writing] = job
        self._reading = writing, writing.read()

    def _read_on(self) -> None:
        """Read one more chunk of a prompt; behind the last one, the text joins its batch."""
        if self._reading is None:
            return
        writing, chunks = self._reading
        try:
            tell(writing.asked.model, "read", writing.number)
            read = next(chunks, None)
            if read is not None:
                self._texts[writing].deliver(read)
                return
            self._reading, model = None, writing.asked.model
            batch = next((one for one in self._batches if one.takes(model)), None)
            if batch is None:
                batch = Batch(model)
                self._batches.append(batch)
            batch.join(writing)
        except Exception as error:
            self._end(writing, error)

    def _step(self, batch: Batch) -> None:
        """Let the texts of a batch go one step further, and hand out what came of it."""
        try:
            found = batch.step()
        except Exception as error:
            found = [(writing, error) for writing in batch.texts]
            batch.close()
        for writing, event in found:
            if isinstance(event, Exception):
                self._end(writing, event)
                continue
            self._texts[writing].deliver(event)
            if writing.ended is not None:
                self._seconds.append(time.monotonic() - writing.start)
                self._end(writing, writing.ended)

    def _end(self, writing: Writing, event: Event) -> None:
        """Hand out the last news of a text."""
        if isinstance(event, Exception) and not isinstance(event, UserError):
            logging.getLogger(__name__).error("a text failed", exc_info=event)
        job = self._texts[writing]
        self._drop(writing)
        job.deliver(event)

    def _drop(self, writing: Writing) -> None:
        """Go on with a text no further."""
        if self._reading is not None and self._reading[0] is writing:
            self._reading = None
        for batch in list(self._batches):
            if writing in batch.texts:
                batch.leave(writing)
            if not batch.texts:
                batch.close()
                self._batches.remove(batch)
        tell(writing.asked.model, "end", writing.number)
        with self._changed:
            del self._texts[writing]
