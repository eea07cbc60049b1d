"""Replies: what all APIs have in common, whole and streamed."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import UserError
from .decoding import Ended, Read, Token, Written
from .metrics import Metrics
from .service import Running


@dataclass
class Choice:
    """One text of a reply so far, and what it came to, once it is complete."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    ended: Ended = field(default_factory=Ended)

    def take(self, event: Read | Written | Ended) -> Sequence[Token]:
        """Take an event into the text, and return its tokens."""
        if isinstance(event, Ended):
            self.ended = event
        if not isinstance(event, Written):
            return ()
        self.text += "".join(token.text for token in event.tokens)
        self.tokens += event.tokens
        return event.tokens


class Writer(Protocol):
    """Puts texts into the form of one API."""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Make the reply that is sent in one piece."""

    def begin(self) -> Iterator[str]:
        """Yield the events that a stream begins with."""

    def wrote(self, number: int, text: str, tokens: Sequence[Token]) -> Iterator[str]:
        """Yield the events of new tokens of a text."""

    def end(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the events that a stream ends with."""

    def failed(self, sentence: str) -> str:
        """Make the event of an error."""


class _Streamed(StreamingResponse):
    """A stream whose texts are written no further once it ends, however that comes."""

    def __init__(self, running: Running, pieces: AsyncIterator[str]):
        headers = {"Cache-Control": "no-store"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.cancel()


async def reply(
    request: Request, running: Running, writer: Writer, streams: bool, metrics: Metrics
) -> Response:
    """The reply to a request, whole or streamed."""
    choices = [Choice() for _ in running.asked]
    if streams:
        return _Streamed(running, _stream(running, writer, choices, metrics))
    work = asyncio.ensure_future(_whole(running, choices))
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            metrics.left.inc()
            return Response(status_code=499)  # nobody reads it
        await work
    finally:
        leaving.cancel()
        work.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await work
    _count(metrics, running, choices)
    return JSONResponse(writer.whole(choices))


async def _whole(running: Running, choices: Sequence[Choice]) -> None:
    async with aclosing(running.events()) as events:
        async for event in events:
            if event is not None:
                choices[event[0]].take(event[1])


async def _left(request: Request) -> None:
    """Wait until the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(
    running: Running, writer: Writer, choices: Sequence[Choice], metrics: Metrics
) -> AsyncIterator[str]:
    complete = False
    try:
        for piece in writer.begin():
            yield piece
        async with aclosing(running.events()) as events:
            async for event in events:
                if event is None:
                    yield ": keep-alive\n\n"
                elif isinstance(event[1], Read):
                    yield f": {event[1].tokens} of {event[1].total} prompt tokens are read\n\n"
                else:
                    number, news = event
                    tokens = choices[number].take(news)
                    text = "".join(token.text for token in tokens)
                    for piece in writer.wrote(number, text, tokens):
                        yield piece
        _count(metrics, running, choices)
        complete = True
        for piece in writer.end(choices):
            yield piece
    except Exception as error:  # the status has been sent, so the stream has to say it
        complete = True
        yield writer.failed(sentence_of(error))
    finally:
        if not complete:
            metrics.left.inc()


def _count(metrics: Metrics, running: Running, choices: Sequence[Choice]) -> None:
    for asked, choice in zip(running.asked, choices, strict=True):
        metrics.wrote(asked.name, choice.ended)


def sentence_of(error: Exception) -> str:
    """What a client is told of an error; what went wrong inside is in the log."""
    known = isinstance(error, UserError) or type(error).__module__.startswith(__package__)
    return str(error) if known else "the server failed"


def event(value: Any, name: str | None = None) -> str:
    """One server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(value)}\n\n"


def usage(choices: Sequence[Choice], words: tuple[str, str] = ("prompt", "completion")) -> dict:
    """OpenAI's counts of tokens; a prompt of several texts counts once."""
    read, written = words
    first = choices[0].ended
    tokens = sum(choice.ended.tokens for choice in choices)
    return {
        f"{read}_tokens": first.prompt_tokens,
        f"{written}_tokens": tokens,
        "total_tokens": first.prompt_tokens + tokens,
        f"{read}_tokens_details": {"cached_tokens": first.cached_tokens},
    }


def figures(choices: Sequence[Choice], running: Running) -> dict[str, Any]:
    """How a reply was drafted, summed over its texts."""
    ended = [choice.ended for choice in choices]
    tokens, calls = (sum(getattr(e, name) for e in ended) for name in ("tokens", "target_calls"))
    return {
        "accepted_length": round(tokens / max(1, calls), 3),
        "target_calls": calls,
        "drafted_tokens": sum(one.drafted_tokens for one in ended),
        "accepted_tokens": sum(one.accepted_tokens for one in ended),
        "drafted_by": dict(sum((one.drafted_by for one in ended), Counter())),
        "draft": running.asked[0].draft,
        "mode": running.asked[0].model.mode,
        "seed": ended[0].seed,
    }
