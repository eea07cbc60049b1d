"""From what a request says to texts to write, and back from the worker to asyncio."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.sampling import Sampling
from ..loading import SpeculativeModel
from ..models.architectures import context_length
from ..prompts import Prompt, encode_prompt, in_template
from .decoding import Asked, Ended, Read, Written
from .errors import RefusedError
from .grammar import Grammars
from .resident import BASE
from .worker import Event, Job, StoppedError, Worker

Result = TypeVar("Result")

DEFAULT_TOKENS = 512
"""The most tokens of a text of which a client does not say how long it may get."""


@dataclass(frozen=True)
class Wish:
    """What a request asks for, in the words of no API.

    Attributes:
        prompt: text, token ids, or the messages of a chat.
        schema: a JSON schema that the text is to fit; ``None``: any text.
        others: see ``bodies`` and ``decoding.Asked``; ``None``: the request does not say.
    """

    model: str
    prompt: Prompt
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    n: int | None = None
    draft: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    schema: dict[str, Any] | None = None


class Service:
    """The resident models, and the worker that decodes with them.

    Args:
        models: from ``resident``.
        tokenizer: of the base.
        worker: decodes.
        most_tokens: of one text.
        patience: seconds without news after which a client is told that the server is alive.
    """

    def __init__(
        self,
        models: Mapping[str, SpeculativeModel],
        tokenizer: TokenizerWrapper,
        worker: Worker,
        most_tokens: int = 4096,
        patience: float = 5.0,
    ):
        self.models, self.tokenizer, self.worker = models, tokenizer, worker
        self.most_tokens, self._patience = most_tokens, patience
        self._grammars = Grammars(tokenizer, models[BASE].config["vocab_size"])
        self._preparing = ThreadPoolExecutor(1, "preparing")

    async def start(self, *wishes: Wish) -> "Running":
        """Put the texts of a request into the queue."""
        try:
            preparing = self._preparing.submit(
                lambda: [asked for wish in wishes for asked in self.asked(wish)]
            )
        except RuntimeError:  # of a pool that was shut down
            raise StoppedError("the server is shutting down") from None
        return Running(self.worker, await asyncio.wrap_future(preparing), self._patience)

    def close(self) -> None:
        """Break off all texts and end the threads."""
        self._preparing.shutdown(cancel_futures=True)
        self.worker.stop()
        if (ranks := self.models[BASE].ranks) is not None:
            ranks.tell("work")

    def asked(self, wish: Wish) -> list[Asked]:
        """The texts that a request asks for."""
        model = self.models.get(wish.model)
        if model is None:
            raise RefusedError(404, f"there is no model {wish.model!r}, see /v1/models", "model")
        prompt = self._prompt(wish, model)
        seed = secrets.randbits(32) if wish.seed is None else wish.seed
        processors: list[Callable[[], LogitsProcessor]] = []
        if wish.schema is not None:
            processors.append(self._grammars.json(wish.schema, len(prompt)))
        sampling = Sampling(
            wish.temperature or 0.0, wish.top_p or 0.0, wish.min_p or 0.0, top_k=wish.top_k or 0
        )
        stop = (wish.stop,) if isinstance(wish.stop, str) else tuple(wish.stop or ())
        asked = [
            Asked(
                wish.model,
                model,
                prompt,
                self._max_tokens(wish.max_tokens, model, len(prompt)),
                sampling,
                seed + number,
                stop,
                wish.draft is not False,
                processors,
                wish.top_logprobs,
            )
            for number in range(wish.n or 1)
        ]
        asked[0].request().check(model)
        return asked

    def _prompt(self, wish: Wish, model: SpeculativeModel) -> list[int]:
        """Token ids of the prompt; what users say stands in the adapter's template."""
        template = model.prompt_template
        if isinstance(wish.prompt, str):
            return encode_prompt(self.tokenizer, wish.prompt, template)
        messages: list[Any] = list(wish.prompt)
        if not isinstance(messages[0], dict):
            return encode_prompt(self.tokenizer, messages)
        if template is not None:
            messages = [
                {**one, "content": in_template(one["content"], template)}
                if one["role"] == "user"
                else one
                for one in messages
            ]
        ids = encode_prompt(self.tokenizer, messages, tools=wish.tools)
        silent = [{n: v for n, v in one.items() if n != "tool_calls"} for one in messages]
        without = {
            "tools": wish.tools and encode_prompt(self.tokenizer, messages),
            "tool_calls": silent != messages
            and encode_prompt(self.tokenizer, silent, tools=wish.tools),
        }
        for name, others in without.items():
            if ids == others:
                sentence = "are not supported: the model's chat template has no place for them"
                raise RefusedError(400, f"{name} {sentence}", name)
        return ids

    def _max_tokens(self, asked: int | None, model: SpeculativeModel, prompt: int) -> int:
        """The most tokens of a text behind a prompt of so many tokens."""
        context = context_length(model.config)
        room = self.most_tokens if context is None else min(self.most_tokens, context - prompt)
        if asked is None:
            return max(1, min(DEFAULT_TOKENS, room))
        if asked > self.most_tokens:
            raise RefusedError(
                400, f"max_tokens is {asked}, this server writes at most {self.most_tokens}"
            )
        if context is not None and prompt <= context < prompt + asked:
            raise RefusedError(
                400,
                f"the prompt has {prompt} tokens and max_tokens is {asked}, the model's context "
                f"holds {context}",
            )
        return asked


class Running:
    """The texts of one request while they are written."""

    def __init__(self, worker: Worker, asked: list[Asked], patience: float):
        self.asked, self._patience = asked, patience
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._jobs = [Job(one, partial(self._deliver, number)) for number, one in enumerate(asked)]
        worker.submit(self._jobs)

    def _deliver(self, number: int, event: Event) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

    async def events(self) -> AsyncGenerator[tuple[int, Read | Written | Ended] | None]:
        """Yield (number of the text, event) up to all texts' ends; ``None``: there is no news.

        When it is closed, whoever closed it has left, and the texts are written no further.
        """
        left = len(self._jobs)
        try:
            while left:
                try:
                    number, event = await asyncio.wait_for(self._events.get(), self._patience)
                except TimeoutError:
                    yield None
                    continue
                if isinstance(event, Exception):
                    raise event
                left -= isinstance(event, Ended)
                yield number, event
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Write no further."""
        for job in self._jobs:
            self._worker.cancel(job)
