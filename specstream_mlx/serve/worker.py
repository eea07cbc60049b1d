"""The worker: one thread that owns the models. Whatever MLX does is done there.

``submit`` takes jobs, and ``Job.deliver`` hands back what becomes of each, on the worker's thread.
Sequences of one model are decoded in one pass, those of several models by turns, a step each.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError
from ..hardware import running
from ..loading.speculative_model import SpeculativeModel
from .decoding import ActiveText, Batcher, Event, Finished, Job
from .fields import RefusedError

_STOPPED = 503, "the server is shutting down"


class Worker:
    """A thread that decodes several texts at a time, and a queue of those that wait.

    The weights of the base stay wired, and its other ranks are led. The rows of ``kept_tokens``
    prompt tokens stay for later prompts.
    """

    def __init__(
        self,
        base: SpeculativeModel,
        tokenizer: TokenizerWrapper,
        most_texts: int = 4,
        most_waiting: int = 32,
        kept_tokens: int = 16384,
    ):
        self._most_texts, self._most_waiting, self._base = most_texts, most_waiting, base
        self._batcher = Batcher(tokenizer, kept_tokens, base.ranks)
        self._waiting: list[Job] = []
        self._served: dict[str, float] = {}  # by model: when a text of it was begun last
        self._usual = 1.0  # seconds of a text
        self._changed, self._stopping = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    # Any thread

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def decoding(self) -> int:
        return len(self._batcher.texts)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put jobs into the queue, all or none."""
        most = self._most_waiting + self._most_texts
        if len(jobs) > most:
            sentence = f"the request asks for {len(jobs)} texts, expected at most {most}"
            raise RefusedError(400, sentence)
        with self._changed:
            if self._stopping:
                raise RefusedError(*_STOPPED)
            free = self._most_waiting + max(0, self._most_texts - self.decoding)
            if self.waiting + len(jobs) > free:
                rounds = (self.waiting + self.decoding) / self._most_texts
                after = max(1, math.ceil(self._usual * rounds / 2))
                sentence = f"the queue is full, try again in {after} s"
                raise RefusedError(429, sentence, **{"Retry-After": str(after)})
            self._waiting += jobs
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Write a text no further; a place in the queue is free at once."""
        job.cancelled = True
        with self._changed, suppress(ValueError):  # it does not wait
            self._waiting.remove(job)

    def stop(self) -> None:
        """End the thread; texts that are not complete are refused."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    # The worker's thread

    def _run(self) -> None:
        batcher = self._batcher
        with running.wired(self._base.model):
            while self._goes_on():
                for number, text in list(batcher.texts.items()):
                    if text.job.cancelled:
                        batcher.remove(number)
                self._add()
                self._step()
            unfinished = [text.job for text in batcher.texts.values()]
            batcher.stop()
        for job in (*unfinished, *self._waiting):
            job.deliver(RefusedError(*_STOPPED))

    def _goes_on(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self.decoding or self.waiting)
            return not self._stopping

    def _next_job(self) -> Job | None:
        """Take a job of the model with the fewest texts, of several the one served longest ago."""
        texts = Counter(text.job.client_request.model for text in self._batcher.texts.values())
        with self._changed:
            if not self._waiting or self.decoding >= self._most_texts:
                return None
            names = [job.client_request.model for job in self._waiting]
            name = min(names, key=lambda name: (texts[name], self._served.get(name, 0.0)))
            self._served[name] = time.monotonic()
            return self._waiting.pop(names.index(name))

    def _add(self) -> None:
        """Begin a text; one prompt is read at a time, so that the next one finds its rows."""
        if not self._batcher.batch.unread and (job := self._next_job()) is not None:
            try:
                self._batcher.add(job)
            except Exception as error:
                job.deliver(error)

    def _step(self) -> None:
        """Take the next turn, and hand out what comes of it."""
        try:
            steps = self._batcher.step()
        except Exception as error:
            for text in self._batcher.turn:
                self._end(text, error)
            return
        for text, step in steps:
            try:
                tokens = text.take(step)
            except Exception as error:
                self._end(text, error)
                continue
            text.job.deliver(tokens)
            if text.finished is not None:
                self._usual += (time.monotonic() - text.start - self._usual) / 8
                self._end(text, text.finished)

    def _end(self, text: ActiveText, event: Event) -> None:
        if isinstance(event, Exception) and not isinstance(event, UserError):
            logging.getLogger(__name__).error("a text failed", exc_info=event)
        self._batcher.remove(text.number, complete=isinstance(event, Finished))
        text.job.deliver(event)
