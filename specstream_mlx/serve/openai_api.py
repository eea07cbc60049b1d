"""OpenAI's ``/v1/chat/completions`` and ``/v1/completions``."""

from collections.abc import Sequence
from typing import Any

from ..thoughts import Thought
from ..vocabulary import vocabulary_of
from .client_request import (
    ClientRequest,
    earlier_call,
    request_of,
    schema_of,
    text_of,
    thought_of,
    tools_of,
)
from .decoding import Token
from .fields import THOUGHTS, RefusedError, without_nulls
from .replies import Choice, Choices, Events, Writer, event, usage
from .tool_calls import Piece


def request_of_chat(body: dict[str, Any]) -> ClientRequest:
    if "max_tokens" in body and "max_completion_tokens" in body:
        sentence = "max_tokens and max_completion_tokens were both given, expected one"
        raise RefusedError(400, sentence, "max_tokens")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise RefusedError(400, "top_logprobs was given without logprobs", "top_logprobs")
    if "max_completion_tokens" in body:
        body = body | {"max_tokens": body["max_completion_tokens"]}
    offered = tools_of(body)
    fields = [name for name in THOUGHTS if any(one.get(name) for one in body["messages"])]
    for name in fields:
        if not any(thought_of(one.get(name)) for one in body["messages"]):  # they are encrypted
            offered["ignored"].append(name)
    contents = (one.get("content") for one in body["messages"])
    parts = [part for content in contents if isinstance(content, list) for part in content]
    if any(part["type"] == "redacted_thinking" for part in parts):
        offered["ignored"].append("redacted_thinking")
    return request_of(
        body,
        [_turn(message) for message in body["messages"]],
        top_logprobs=body.get("top_logprobs", 0) if body.get("logprobs") else None,
        **offered,
        schema=schema_of(body.get("response_format")),
        thoughts_field=next(iter(fields), "reasoning_content"),
    )


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    role, calls, content = message["role"], message.get("tool_calls"), message.get("content")
    thoughts = [thought_of(message.get(name)) for name in THOUGHTS]
    if isinstance(content, list):
        thoughts.append(thought_of([part for part in content if part["type"] in _THOUGHT_PARTS]))
    thought = next(filter(None, thoughts), None)
    if content is None and calls is None and thought is None:
        raise RefusedError(400, f"a message of the {role} has no content", "messages")
    turn = {"role": "system" if role == "developer" else role}
    turn["content"] = text_of(content) or ""
    if thought is not None and role == "assistant":
        turn["reasoning_content"] = thought
    turn |= without_nulls({name: message.get(name) for name in ("name", "tool_call_id")})
    if calls:
        turn["tool_calls"] = [
            earlier_call(call.get("id"), call["function"], "messages") for call in calls
        ]
    return turn


def bodies_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a body for each chat or prompt of a request, each of which is answered by itself."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        return [body | {"prompt": one} for one in prompt]
    return [*map(without_nulls, body.get("chats", [body]))]


def request_of_completion(body: dict[str, Any]) -> ClientRequest:
    return request_of(body, body["prompt"], top_logprobs=body.get("logprobs"))


class CompletionWriter(Writer):
    """Replies of ``/v1/completions``, whole and in chunks."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def whole(self, choices: Choices) -> dict[str, Any]:
        made = [self.choice(one, self.message(one.pieces), one.tokens, True) for one in choices]
        return self._object(self.kind, made) | self._counts(choices)

    def wrote(self, choice: Choice, pieces: Sequence[Piece], tokens: list[Token]) -> Events:
        step = [{"id": t.id, "text": t.text, "drafted_by": t.drafted_by} for t in tokens]
        made = self.choice(choice, self.delta(choice, pieces), tokens)
        yield self._chunk(made, specstream={"step": step})

    def end(self, choices: Choices) -> Events:
        for choice in choices:
            last = choice is choices[-1] and not self._with_usage
            figures = {"specstream": self.figures(choices)} if last else {}
            made = self.choice(choice, self.delta(choice, ()), ended=True)
            yield self._chunk(made, **figures)
        if self._with_usage:
            yield event(self._object(self.chunk_kind, []) | self._counts(choices))
        yield "data: [DONE]\n\n"

    def failed(self, sentence: str) -> str:
        return event({"error": {"message": sentence, "type": "api_error"}})

    def choice(
        self, choice: Choice, said: dict, tokens: Sequence = (), ended: bool = False
    ) -> dict:
        """Make what a chunk, or a whole reply, says of one text."""
        scored = tokens and choice.job.client_request.top_logprobs is not None
        reason = choice.reason if ended else None
        if choice.calls and reason == "stop":
            reason = "tool_calls"
        logprobs = self.logprobs(tokens) if scored else None
        return {"index": choice.number, "logprobs": logprobs, "finish_reason": reason, **said}

    def message(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"text": "".join(piece for piece in pieces if isinstance(piece, str))}

    def delta(self, choice: Choice, pieces: Sequence[Piece]) -> dict[str, Any]:
        return self.message(pieces)

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        name = vocabulary_of(self.tokenizer).name_of
        return {
            "tokens": [name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{name(i): p for i, p in token.top} for token in tokens],
        }

    @property
    def _with_usage(self) -> bool:
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
            said = {"delta": {"role": "assistant", "content": ""}}
            yield self._chunk(self.choice(choice, said))

    def message(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        thought, text, calls = _parts(pieces)
        content = text or None if calls else text
        message = {"role": "assistant", "content": content, "refusal": None}
        message |= {"reasoning_content": thought} if thought else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def delta(self, choice: Choice, pieces: Sequence[Piece]) -> dict[str, Any]:
        thought, text, calls = _parts(pieces)
        delta: dict[str, Any] = {"reasoning_content": thought} if thought else {}
        delta |= {"content": text} if text else {}
        if calls:
            numbered = enumerate(calls, len(choice.calls) - len(calls))
            delta["tool_calls"] = [{"index": index, **call} for index, call in numbered]
        return {"delta": delta}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = [
            self._scored(token.id, token.logprob)
            | {"top_logprobs": [self._scored(*pair) for pair in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, logprob: float | None) -> dict[str, Any]:
        vocabulary = vocabulary_of(self.tokenizer)
        word, raw = vocabulary.name_of(token), vocabulary.bytes_of(token)
        return {"token": word, "logprob": logprob, "bytes": list(raw)}


def _parts(pieces: Sequence[Piece]) -> tuple[str, str, list[dict[str, Any]]]:
    """Return what is thought, said and called."""
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    return thought, text, [piece for piece in pieces if isinstance(piece, dict)]


_THOUGHT_PARTS = "thinking", "reasoning"
