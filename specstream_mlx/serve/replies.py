"""Replies: what all APIs have in common, whole and streamed."""

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import UserError
from ..thoughts import Thought
from .decoding import Event, Finished, Job, Token
from .service import Service
from .tool_calls import Piece, ReplyParser, joined


class Choice:
    """One text of a reply so far."""

    ended: Finished  # set once the text is complete

    def __init__(self, number: int, job: Job, tokenizer: TokenizerWrapper):
        self.number, self.job = number, job
        self.pieces: list[Piece] = []
        self.tokens: list[Token] = []
        self.thought_tokens = 0
        request = job.client_request
        fits = request.schema is not None
        self._parser = ReplyParser(tokenizer, request.tools, job.prompt, fits)
        self._is_chat, self.calls = request.is_chat, self._parser.calls

    @property
    def reason(self) -> str:
        """Why the text ended: ``stop`` or ``length``."""
        return self.ended.last.finish_reason or ""

    def take(self, event: list[Token] | Finished) -> list[Piece]:
        """Take in the tokens of a step, or the end, and return new pieces."""
        pieces: list[Piece] = []
        if isinstance(event, Finished):
            self.ended = event
            pieces += self._parser.end()
        else:
            self.tokens += event
            for token in event:
                pieces += self._take(token.text)
        pieces = list(joined(pieces))
        self.pieces += pieces
        return pieces

    def _take(self, text: str) -> Iterator[Piece]:
        if not self._is_chat:
            yield from filter(None, [text])
            return
        before = self._parser.is_in_thought
        yield from self._parser.add(text)
        self.thought_tokens += before or self._parser.is_in_thought


Choices = Sequence[Choice]
Events = Iterator[str]


class Writer:
    """Puts texts into the form of one API.

    Each API's has ``whole(choices)``, the reply in one piece; and the events of a stream:
    ``begin(choices)``, ``wrote(choice, pieces, tokens)``, ``end(choices)``, ``failed(sentence)``.
    """

    prefix: str

    def __init__(self, body: dict[str, Any], tokenizer: TokenizerWrapper):
        self.body, self.tokenizer = body, tokenizer
        self.id, self.created = f"{self.prefix}{uuid.uuid4().hex}", int(time.time())

    def begin(self, choices: Choices) -> Events:
        yield from ()

    def figures(self, choices: Choices) -> dict[str, Any]:
        """Return how a reply was drafted, summed over its texts."""
        ended, first = [choice.ended.last for choice in choices], choices[0].job
        tokens = sum(one.generation_tokens for one in ended)
        calls = sum(one.target_calls for one in ended)
        seen = [one.draft_stats for one in ended if one.draft_stats is not None]
        return {
            "accepted_length": round(tokens / max(1, calls), 3),
            "target_calls": calls,
            "drafted_tokens": sum(one.drafted_tokens for one in ended),
            "accepted_tokens": sum(one.accepted_tokens for one in ended),
            "drafted_by": dict(sum((choice.ended.drafted_by for choice in choices), Counter())),
            "seen": sum(seen[1:], seen[0]).values() if seen else None,
            "draft": first.client_request.draft,
            "mode": first.model.mode,
            "seed": None if first.client_request.sampling.takes_arg_max else first.seed,
        } | ({"ignored": [*ignored]} if (ignored := first.client_request.ignored) else {})


class ItemWriter(Writer):
    """Writes a text as a list of items: each is a call, a thought, or what is said between them.

    Each API's has the events of an item: ``called(id, name, arguments)`` of a call,
    ``opened(kind)``, ``grown(text)`` and ``closed(status)`` of others, whose kind is ``Thought`` or
    ``str``; and ``reply(choices)`` of complete items.
    """

    called: Any
    opened: Any
    grown: Any
    closed: Any
    reply: Any

    def __init__(self, body: dict[str, Any], tokenizer: TokenizerWrapper):
        super().__init__(body, tokenizer)
        self.items: list[dict[str, Any]] = []
        self._open: type | None = None  # the kind of the last one, if it may go on

    def whole(self, choices: Choices) -> dict[str, Any]:
        for _ in (*self.wrote(choices[0], choices[0].pieces), *self.complete(choices[0])):
            pass  # what makes the events makes the items
        return self.reply(choices)

    def wrote(self, _: Choice, pieces: Sequence[Piece], tokens: Sequence[Token] = ()) -> Events:
        for piece in pieces:
            if isinstance(piece, dict):
                yield from self._close("completed")
                yield from self.called(piece["id"], **piece["function"])
                continue
            if self._open is not type(piece):
                yield from self._close("completed")
                yield from self.opened(type(piece))
                self._open = type(piece)
            yield from self.grown(piece.text if isinstance(piece, Thought) else piece)

    def complete(self, choice: Choice) -> Events:
        yield from self._close("incomplete" if choice.reason == "length" else "completed")

    def _close(self, status: str) -> Events:
        if self._open is not None:
            yield from self.closed(status)
        self._open = None


class Reply(StreamingResponse):
    """The texts of one request while they are written, as events or ``whole``.

    Making it puts them into the queue; they are written no further once it ends, however.
    """

    def __init__(self, service: Service, jobs: list[Job], writer: Any):
        headers = {"Cache-Control": "no-store"}
        super().__init__(self._stream(), media_type="text/event-stream", headers=headers)
        self._service, self._writer = service, writer
        self._choices = [Choice(n, job, writer.tokenizer) for n, job in enumerate(jobs)]
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[Choice, Event]] = asyncio.Queue()
        for choice in self._choices:
            choice.job.deliver = partial(self._deliver, choice)
        service.worker.submit(jobs)

    def _deliver(self, choice: Choice, event: Event) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, (choice, event))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._cancel()

    async def whole(self, request: Request) -> Response:
        """Wait for all texts, unless the client leaves."""
        try:
            async for _ in self._news():
                if await request.is_disconnected():
                    return Response(status_code=499)  # nobody reads it
        finally:
            self._cancel()
        return JSONResponse(self._writer.whole(self._choices))

    async def _news(self) -> AsyncIterator[str | tuple[Choice, list[Piece], list[Token]]]:
        """Yield what each step has brought a text, and comments, up to the end of all texts."""
        left = len(self._choices)
        while left:
            try:
                choice, event = await asyncio.wait_for(self._events.get(), self._service.patience)
            except TimeoutError:
                yield ": keep-alive\n\n"
                continue
            if isinstance(event, Exception):
                raise event
            if isinstance(event, int):
                yield f": {event} of {len(choice.job.prompt)} prompt tokens are read\n\n"
                continue
            left -= isinstance(event, Finished)
            pieces, tokens = choice.take(event), event if isinstance(event, list) else []
            if pieces or tokens:
                yield choice, pieces, tokens
            if isinstance(event, Finished) and len(self._choices) > 1:
                yield f": text {choice.number} has ended: {choice.reason}\n\n"

    async def _stream(self) -> AsyncIterator[str]:
        writer = self._writer
        try:
            for piece in writer.begin(self._choices):
                yield piece
            async for one in self._news():
                for piece in [one] if isinstance(one, str) else writer.wrote(*one):
                    yield piece
            for piece in writer.end(self._choices):
                yield piece
        except Exception as error:  # the status has been sent, so the stream has to say it
            yield writer.failed(sentence_of(error))

    def _cancel(self) -> None:
        for choice in self._choices:
            self._service.worker.cancel(choice.job)


def sentence_of(error: Exception) -> str:
    """Return what a client may know of an error; what went wrong inside is in the log."""
    return str(error) if isinstance(error, UserError) else "the server failed"


def event(value: Any, name: str | None = None) -> str:
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(value, allow_nan=False)}\n\n"


def usage(choices: Choices, words: tuple[str, str] = ("prompt", "completion")) -> dict:
    """Return OpenAI's counts of tokens; a prompt of several texts counts once."""
    read, written = words
    of_prompts = {id(choice.job.client_request): choice for choice in reversed(choices)}.values()
    prompt = sum(len(choice.job.prompt) for choice in of_prompts)
    cached = sum(choice.ended.cached_tokens for choice in of_prompts)
    tokens = sum(choice.ended.last.generation_tokens for choice in choices)
    thought = sum(choice.thought_tokens for choice in choices)
    details = {f"{written}_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    return details | {
        f"{read}_tokens": prompt,
        f"{written}_tokens": tokens,
        "total_tokens": prompt + tokens,
        f"{read}_tokens_details": {"cached_tokens": cached},
    }
