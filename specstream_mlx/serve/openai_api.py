"""OpenAI's ``/v1/chat/completions`` and ``/v1/completions``."""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .bodies import (
    CalledFunction,
    Chat,
    Completion,
    Format,
    JSONFormat,
    Message,
    SchemaFormat,
    text_of,
)
from .decoding import Token
from .errors import RefusedError
from .replies import Choice, event, figures, usage
from .service import Running, Wish
from .tool_calls import Call, Said


def wish_of_chat(body: Chat) -> Wish:
    """What a chat asks for."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise RefusedError(
            400, "max_tokens and max_completion_tokens were both given, expected one", "max_tokens"
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise RefusedError(400, "top_logprobs was given without logprobs", "top_logprobs")
    said = body.said() | {"max_tokens": body.max_completion_tokens or body.max_tokens}
    return Wish(
        prompt=[_message(message) for message in body.messages],
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        tools=_tools(body),
        schema=_schema(body.response_format),
        **said,
    )


def wish_of_completion(body: Completion) -> Wish:
    """What a completion asks for."""
    return Wish(prompt=body.prompt, top_logprobs=body.logprobs, **body.said())


def _message(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    content = text_of(message.content)
    if content is None and message.tool_calls is None:
        raise RefusedError(400, f"a message of the {message.role} has no content", "messages")
    others: dict[str, Any] = {
        name: value
        for name in ("name", "tool_call_id")
        if (value := getattr(message, name)) is not None
    }
    if message.tool_calls:
        others["tool_calls"] = [
            earlier_call(call.id, call.function, "messages") for call in message.tool_calls
        ]
    return {"role": role, "content": content or "", **others}


def earlier_call(its_id: str | None, called: CalledFunction, field: str) -> dict[str, Any]:
    """A call of an earlier turn, as chat templates expect it: with arguments that are no text."""
    try:
        arguments = json.loads(called.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        sentence = f"the arguments of a call of {called.name} are no JSON object"
        raise RefusedError(400, sentence, field)
    return {
        "id": its_id,
        "type": "function",
        "function": {"name": called.name, "arguments": arguments},
    }


def _tools(body: Chat) -> list[dict[str, Any]] | None:
    """Tools that may be called."""
    if body.tools is None or body.tool_choice == "none":
        return None
    return [tool.model_dump(exclude_unset=True) for tool in body.tools]


def _schema(wanted: Format | None) -> dict[str, Any] | None:
    if isinstance(wanted, JSONFormat):
        return {"type": "object"}
    return wanted.json_schema.schema_ if isinstance(wanted, SchemaFormat) else None


class CompletionWriter:
    """Replies of ``/v1/completions``, whole and in chunks."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, body: Chat | Completion, running: Running, tokenizer: TokenizerWrapper):
        self._body, self._running, self._tokenizer = body, running, tokenizer
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        options = body.stream_options
        self._trailer = options is not None and bool(options.include_usage)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Make the reply that is sent in one piece."""
        made = [
            self._choice(number, choice.text, choice.tokens, choice.ended.reason, whole=True)
            for number, choice in enumerate(choices)
        ]
        return self._object(self.kind, made, choices)

    def begin(self) -> Iterator[str]:
        """Yield nothing: the first text comes first."""
        yield from ()

    def wrote(self, number: int, text: str, tokens: Sequence[Token]) -> Iterator[str]:
        """Yield a chunk of the tokens of one step."""
        if tokens:
            chunk = self._object(self.chunk_kind, [self._choice(number, text, tokens)])
            step = [{"id": t.id, "text": t.text, "drafted_by": t.drafted_by} for t in tokens]
            yield event(chunk | {"specstream": {"step": step}})

    def end(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield each text's last chunk, the counts if they were asked for, and the end."""
        last = len(choices) - 1
        for number, choice in enumerate(choices):
            last_of_text = self._choice(number, "", reason=choice.ended.reason)
            chunk = self._object(self.chunk_kind, [last_of_text])
            if number == last and not self._trailer:
                chunk["specstream"] = figures(choices, self._running)
            yield event(chunk)
        if self._trailer:
            yield event(self._object(self.chunk_kind, [], choices))
        yield "data: [DONE]\n\n"

    def failed(self, sentence: str) -> str:
        """Make the event of an error."""
        return event({"error": {"message": sentence, "type": "api_error"}})

    def _object(
        self, kind: str, made: list[dict[str, Any]], choices: Sequence[Choice] | None = None
    ) -> dict[str, Any]:
        values = {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._body.model,
            "choices": made,
        }
        if choices is not None:
            values |= {"usage": usage(choices), "specstream": figures(choices, self._running)}
        elif self._trailer:
            values["usage"] = None
        return values

    def _choice(
        self,
        number: int,
        text: str,
        tokens: Sequence[Token] = (),
        reason: str | None = None,
        whole: bool = False,
    ) -> dict[str, Any]:
        scored = tokens and self._running.asked[0].top_logprobs is not None
        logprobs = self._logprobs(tokens) if scored else None
        said = self._said(number, text, reason, whole)
        return {"index": number, "logprobs": logprobs, "finish_reason": reason, **said}

    def _said(self, number: int, text: str, reason: str | None, whole: bool) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._name(i): p for i, p in token.top} for token in tokens],
        }

    def _name(self, token: int) -> str:
        return self._tokenizer.decode([token])


class ChatWriter(CompletionWriter):
    """Replies of ``/v1/chat/completions``."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, body: Chat, running: Running, tokenizer: TokenizerWrapper):
        super().__init__(body, running, tokenizer)
        self._heard = [Said(tokenizer, _tools(body)) for _ in running.asked]

    def begin(self) -> Iterator[str]:
        """Yield a chunk of each text that says who speaks."""
        for number in range(len(self._running.asked)):
            choice = self._choice(number, "") | {"delta": {"role": "assistant", "content": ""}}
            yield event(self._object(self.chunk_kind, [choice]))

    def _said(self, number: int, text: str, reason: str | None, whole: bool) -> dict[str, Any]:
        heard = self._heard[number]
        before = len(heard.calls)
        pieces = [*heard.add(text), *(() if reason is None else heard.end())]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = [_shown(call) for call in pieces if isinstance(call, Call)]
        ended = {"finish_reason": "tool_calls"} if heard.calls and reason == "stop" else {}
        if whole:
            said: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if calls:
                said |= {"content": content or None, "tool_calls": calls}
            return {"message": said, **ended}
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [
                {"index": index, **call} for index, call in enumerate(calls, before)
            ]
        return {"delta": delta, **ended}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = [
            self._scored(token.id, token.logprob)
            | {"top_logprobs": [self._scored(*pair) for pair in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, logprob: float | None) -> dict[str, Any]:
        name = self._name(token)
        return {"token": name, "logprob": logprob, "bytes": list(name.encode())}


def _shown(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
