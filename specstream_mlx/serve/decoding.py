"""Decoding for the server: jobs become sequences of a batch, and its steps become tokens.

What a ``Batcher`` does reaches the device, so all ranks do it: rank 0 broadcasts each act, the
others repeat it. What is written, and which stop string ends it, rank 0 alone reads.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..distributed.ranks import Ranks
from ..drafting.settings import DraftSettings
from ..engine.guess import NO_GUESSES
from ..engine.sampling import keyed_sampler
from ..generation.batch import Batch
from ..generation.kv_store import PromptCache
from ..generation.request import Request
from ..generation.sequence import Step, TokenSequence
from ..generation.text import GenerationResponse, Text
from ..loading.speculative_model import SpeculativeModel
from .client_request import ClientRequest
from .tool_calls import call_marks

_CHUNK = 512  # prompt tokens that are read before others have a turn
_LEAST = 8  # tokens; copying the rows of fewer is not worth it
_UNLIKELY = -9999.0  # the log-probability that OpenAI gives for none


@dataclass(frozen=True)
class Token:
    text: str  # what can be read now, which may lag behind the token
    id: int
    logprob: float | None = None  # in nats, after processors and before the temperature
    top: Sequence[tuple[int, float]] = ()  # the likeliest tokens with theirs
    drafted_by: str | None = None  # "streams", or else "lookup"; None: it is the target's own


@dataclass(frozen=True)
class Finished:
    last: GenerationResponse  # of its last token, with all counts
    cached_tokens: int  # of the prompt, that had been read before
    drafted_by: Counter[str]  # accepted drafts
    stopped_by: str | None = None  # the stop string that was met


Event = int | list[Token] | Finished | Exception
"""News of a text: how much of its prompt is read, or the tokens of one step; ``Finished`` or an
exception is the last."""


@dataclass(eq=False)
class Job:
    """One text to write."""

    client_request: ClientRequest
    model: SpeculativeModel
    prompt: list[int]
    max_tokens: int
    seed: int = 0
    processors: Sequence[LogitsProcessor] = ()  # of this text alone
    deliver: Callable[[Event], Any] = lambda event: None  # called on the worker's thread
    cancelled: bool = False  # whether nobody waits for it any more, see Worker.cancel

    def request(self) -> Request:
        return Request(
            self.prompt,
            None if self.client_request.draft else DraftSettings(speculation=False),
            max_tokens=self.max_tokens,
            prefill_step_size=_CHUNK,
            sampler=keyed_sampler(self.seed, sampler=self.client_request.sampling),
        )


class ActiveText:
    """A job that is being done; the ranks know it by its number."""

    def __init__(self, job: Job, number: int, tokenizer: TokenizerWrapper, cache: PromptCache):
        self.job, self.number, self.cache = job, number, cache
        self.start = time.monotonic()
        self.finished: Finished | None = None
        self._processors = [_Caught(processor) for processor in job.processors]
        request = replace(
            job.request(),
            end_tokens=tokenizer.eos_token_ids,
            prompt_cache=cache,
            logits_processors=self._processors,
            progress=lambda read, of: cache.reused < read < of and job.deliver(read),
        )
        request.check(job.model)
        self.sequence = TokenSequence(job.model, request)
        asked = job.client_request
        where = call_marks(tokenizer, asked.tools), asked.schema is not None
        self._text = Text(tokenizer, request, asked.stop, not asked.is_chat, *where)
        self._drafted_by, self._guesses = Counter[str](), NO_GUESSES

    def take(self, step: Step) -> list[Token]:
        """Turn a step into tokens, up to where the text ends."""
        for processor in self._processors:
            if processor.error is not None:
                raise processor.error
        *drafts, _ = step.tokens
        drafters: list[str | None] = []
        for depth, token in enumerate(drafts):
            guessed = dict(self._guesses.after(tuple(drafts[:depth])))
            drafters.append("streams" if token in guessed else "lookup")
        self._guesses = step.result.guesses()
        responses, text = self._text.take(step), self._text
        drafters = [*drafters, None][: len(responses)]
        self._drafted_by.update(filter(None, drafters))
        if text.last.finish_reason:
            cached, drafted_by = self.cache.reused, self._drafted_by
            self.finished = Finished(responses[-1], cached, drafted_by, text.stopped_by)
        top = self.job.client_request.top_logprobs
        return [_token(*pair, top) for pair in zip(responses, drafters, strict=True)]


class Batcher:
    """All texts that are written, on one rank."""

    def __init__(self, tokenizer: TokenizerWrapper, kept_tokens: int, ranks: Ranks | None = None):
        self.prompt_caches = PromptCaches(kept_tokens)
        self.texts: dict[int, ActiveText] = {}
        self.batch = Batch()
        self._tokenizer, self._ranks = tokenizer, ranks
        self._numbers = count()

    def follow(self, models: Mapping[str, SpeculativeModel]) -> None:
        """Repeat the acts of rank 0 until it stops, with models by the names of clients."""
        assert self._ranks is not None
        while (act := self._ranks.receive("work")) is not None:
            verb, *arguments = act
            if verb == "add":
                name, prompt, max_tokens = arguments
                self.add(Job(ClientRequest(name, prompt), models[name], prompt, max_tokens))
            else:
                getattr(self, verb)(*arguments)

    @property
    def turn(self) -> list[ActiveText]:
        """The texts whose turn was the last one."""
        return [text for text in self.texts.values() if text.sequence in self.batch.turn]

    def add(self, job: Job) -> None:
        """Begin a text."""
        self._broadcast("add", job.client_request.model, job.prompt, job.max_tokens)
        cache = self.prompt_caches.cache_for(job.model.model, job.prompt)
        text = ActiveText(job, next(self._numbers), self._tokenizer, cache)
        self.batch.add(text.sequence)
        self.texts[text.number] = text

    def step(self) -> list[tuple[ActiveText, Step]]:
        """Take the next turn, of a prompt or of a pass, and return the steps that it brought."""
        self._broadcast("step")
        steps = dict(self.batch.step())
        for text in self.turn:
            if not steps and text.sequence.is_read:
                self.prompt_caches.store(text.job.model.model, text.cache)
        return [(text, steps[text.sequence]) for text in self.turn if text.sequence in steps]

    def remove(self, number: int, complete: bool = False) -> None:
        """Go on with a text no further; later prompts may begin with one that is complete."""
        self._broadcast("remove", number, complete)
        text = self.texts.pop(number)
        self.batch.remove(text.sequence)
        if complete:
            self.prompt_caches.store(text.job.model.model, text.cache)

    def stop(self) -> None:
        """End all texts; the other ranks end, too."""
        for number in list(self.texts):
            self.remove(number)
        if self._ranks is not None:
            self._ranks.send("work")

    def _broadcast(self, *act: Any) -> None:
        if self._ranks is not None and self._ranks.is_first:
            self._ranks.send("work", act)


class PromptCaches:
    """KV rows of the prompts and texts read last: ``stored`` has model, tokens and rows of each."""

    def __init__(self, most_tokens: int):
        self._most = most_tokens
        self.stored: list[tuple[nn.Module, np.ndarray, PromptCache]] = []

    @property
    def tokens(self) -> int:
        return sum(len(tokens) for _, tokens, _ in self.stored)

    def cache_for(self, model: nn.Module, prompt: Sequence[int]) -> PromptCache:
        """Make a cache of the prompt's own, with the rows of as many of its tokens as there are."""
        sizes = self._common(model, np.array(prompt), 0)
        if max(sizes, default=0) < _LEAST:
            return PromptCache()
        self.stored.append(self.stored.pop(int(np.argmax(sizes))))
        return deepcopy(self.stored[-1][2])

    def store(self, model: nn.Module, cache: PromptCache) -> None:
        """Store a copy of a cache's rows instead of those that it holds too."""
        new = np.array(cache.tokens)
        shared = self._common(model, new, -1)
        if not _LEAST <= len(new) <= self._most or len(new) in shared:
            return
        others = zip(self.stored, shared, strict=True)
        self.stored = [entry for entry, common in others if common < len(entry[1])]
        # Buffers have room for hundreds of rows more than a short text needs.
        self.stored.append((model, new, cache.without_spare_rows()))
        while self.tokens > self._most:
            del self.stored[0]

    def _common(self, model: nn.Module, new: np.ndarray, other: int) -> list[int]:
        """Count the tokens with which each begins as new ones do; of other models, ``other``."""
        counts = []
        for owner, tokens, _ in self.stored:
            size = min(len(tokens), len(new))
            differ = np.flatnonzero(tokens[:size] != new[:size])
            common = int(differ[0]) if len(differ) else size
            counts.append(common if owner is model else other)
        return counts


class _Caught:
    """A logits processor whose error, kept, does not end the other sequences of its pass."""

    def __init__(self, processor: LogitsProcessor):
        self._processor = processor
        self.error: Exception | None = None

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if self.error is None:
            try:
                return self._processor(tokens, logits)
            except Exception as error:
                self.error = error
        return logits


def _token(response: GenerationResponse, drafter: str | None, top: int | None) -> Token:
    if top is None:
        return Token(response.text, response.token, drafted_by=drafter)
    log_probs = response.logprobs
    best: Any = []
    if top := min(top, log_probs.size):
        best = mx.argpartition(-log_probs, top - 1)[:top].tolist()
    scores: Any = log_probs[mx.array([response.token, *best])].tolist()
    # What cannot come is no likely token, and JSON has no word for minus infinity.
    pairs = [pair for pair in zip(best, scores[1:], strict=True) if math.isfinite(pair[1])]
    own = scores[0] if math.isfinite(scores[0]) else _UNLIKELY
    pairs.sort(key=lambda pair: -pair[1])
    return Token(response.text, response.token, own, pairs, drafter)
