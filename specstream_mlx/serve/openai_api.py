"""OpenAI's ``/v1/chat/completions`` and ``/v1/completions``."""

from collections.abc import Sequence
from typing import Any

from .client_request import ClientRequest, earlier_call, request_of, schema_of, text_of
from .decoding import Token
from .fields import RefusedError
from .replies import Choice, Choices, Events, Writer, event, usage
from .tool_calls import Piece


def request_of_chat(body: dict[str, Any]) -> ClientRequest:
    """Return what a chat asks for."""
    if "max_tokens" in body and "max_completion_tokens" in body:
        sentence = "max_tokens and max_completion_tokens were both given, expected one"
        raise RefusedError(400, sentence, "max_tokens")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise RefusedError(400, "top_logprobs was given without logprobs", "top_logprobs")
    if "max_completion_tokens" in body:
        body = body | {"max_tokens": body["max_completion_tokens"]}
    return request_of(
        body,
        [_turn(message) for message in body["messages"]],
        top_logprobs=body.get("top_logprobs", 0) if body.get("logprobs") else None,
        tools=body.get("tools") if body.get("tool_choice") != "none" else None,
        schema=schema_of(body.get("response_format")),
        template_kwargs=body.get("chat_template_kwargs", {}),
    )


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    """Return the turn of a chat template."""
    role, calls = message["role"], message.get("tool_calls")
    if message.get("content") is None and calls is None:
        raise RefusedError(400, f"a message of the {role} has no content", "messages")
    turn = {
        name: message[name] for name in ("name", "tool_call_id") if message.get(name) is not None
    }
    turn["role"] = "system" if role == "developer" else role
    turn["content"] = text_of(message.get("content")) or ""
    if calls:
        turn["tool_calls"] = [
            earlier_call(call.get("id"), call["function"], "messages") for call in calls
        ]
    return turn


def request_of_completion(body: dict[str, Any]) -> ClientRequest:
    """Return what a completion asks for."""
    return request_of(body, body["prompt"], top_logprobs=body.get("logprobs"))


class CompletionWriter(Writer):
    """Replies of ``/v1/completions``, whole and in chunks."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def whole(self, choices: Choices) -> dict[str, Any]:
        made = [
            self.choice(one, [*one.pieces, *one.last], one.tokens, one.reason, "message")
            for one in choices
        ]
        return self._object(self.kind, made) | self._counts(choices)

    def wrote(self, choice: Choice, pieces: Sequence[Piece], tokens: list[Token]) -> Events:
        step = [{"id": t.id, "text": t.text, "drafted_by": t.drafted_by} for t in tokens]
        yield self._chunk(self.choice(choice, pieces, tokens), specstream={"step": step})

    def end(self, choices: Choices) -> Events:
        for choice in choices:
            last = choice is choices[-1] and not self._with_usage
            figures = {"specstream": self.figures(choices)} if last else {}
            yield self._chunk(self.choice(choice, choice.last, reason=choice.reason), **figures)
        if self._with_usage:
            yield event(self._object(self.chunk_kind, []) | self._counts(choices))
        yield "data: [DONE]\n\n"

    def failed(self, sentence: str) -> str:
        return event({"error": {"message": sentence, "type": "api_error"}})

    def choice(
        self,
        choice: Choice,
        pieces: Sequence[Piece] = (),
        tokens: Sequence[Token] = (),
        reason: str | None = None,
        name: str = "delta",
    ) -> dict[str, Any]:
        """Make what a chunk, or a whole reply, says of one text."""
        scored = tokens and choice.job.client_request.top_logprobs is not None
        logprobs = self.logprobs(tokens) if scored else None
        made = {"index": choice.number, "logprobs": logprobs, "finish_reason": reason}
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        return made | self.said(choice, text, pieces, reason, name)

    def said(
        self, choice: Choice, text: str, pieces: Sequence[Piece], reason: str | None, name: str
    ) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "tokens": [self.word(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self.word(i): p for i, p in token.top} for token in tokens],
        }

    def word(self, token: int) -> str:
        return self.tokenizer.decode([token])

    @property
    def _with_usage(self) -> bool:
        """Whether a stream ends with the counts."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    def _counts(self, choices: Choices) -> dict[str, Any]:
        return {"usage": usage(choices), "specstream": self.figures(choices)}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        made = {"id": self.id, "object": kind, "created": self.created}
        return made | {"model": self.body["model"], "choices": choices}

    def _chunk(self, choice: dict[str, Any], **others: Any) -> str:
        usage = {"usage": None} if self._with_usage else {}
        return event(self._object(self.chunk_kind, [choice]) | usage | others)


class ChatWriter(CompletionWriter):
    """Replies of ``/v1/chat/completions``."""

    prefix, kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def begin(self, choices: Choices) -> Events:
        for choice in choices:
            delta = {"role": "assistant", "content": ""}
            yield self._chunk(self.choice(choice) | {"delta": delta})

    def said(
        self, choice: Choice, text: str, pieces: Sequence[Piece], reason: str | None, name: str
    ) -> dict[str, Any]:
        calls = [piece for piece in pieces if isinstance(piece, dict)]
        said: dict[str, Any] = {"content": text} if text else {}
        if name == "message":
            content = text or None if calls else text
            said = {"role": "assistant", "content": content, "refusal": None}
        else:
            first = len(choice.calls) - len(calls)
            calls = [{"index": index, **call} for index, call in enumerate(calls, first)]
        if calls:
            said["tool_calls"] = calls
        called = {"finish_reason": "tool_calls"} if choice.calls and reason == "stop" else {}
        return {name: said, **called}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = [
            self._scored(token.id, token.logprob)
            | {"top_logprobs": [self._scored(*pair) for pair in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, logprob: float | None) -> dict[str, Any]:
        word = self.word(token)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}
