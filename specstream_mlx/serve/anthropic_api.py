"""Anthropic's ``/v1/messages``."""

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .bodies import AnthropicMessage, Messages, Part, ToolResult, ToolUse, text_of
from .decoding import Token
from .errors import RefusedError
from .replies import Choice, event, figures
from .service import Running, Wish
from .tool_calls import Call, Said


def wish_of_messages(body: Messages) -> Wish:
    """What a request asks for."""
    turns = [turn for message in body.messages for turn in _turns(message)]
    if system := text_of(body.system):
        turns.insert(0, {"role": "system", "content": system})
    return Wish(prompt=turns, stop=body.stop_sequences, tools=_tools(body), **body.said())


def _turns(message: AnthropicMessage) -> Iterator[dict[str, Any]]:
    """The turns of a chat template: results are turns of their own, calls stand beside text."""
    role, blocks = message.role, message.content
    if isinstance(blocks, str):
        yield {"role": role, "content": blocks}
        return
    wrong = ToolUse if role == "user" else ToolResult
    if found := next((one for one in blocks if isinstance(one, wrong)), None):
        raise RefusedError(400, f"a {found.type} stands in a turn of the {role}", "messages")
    for one in blocks:
        if isinstance(one, ToolResult):
            text = ("Error: " if one.is_error else "") + (text_of(one.content) or "")
            yield {"role": "tool", "content": text, "tool_call_id": one.tool_use_id}
    said = [one for one in blocks if isinstance(one, Part)]
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.input}}
        for one in blocks
        if isinstance(one, ToolUse)
    ]
    if said or calls or not blocks:
        turn = {"role": role, "content": text_of(said)}
        yield turn | ({"tool_calls": calls} if calls else {})


def _tools(body: Messages) -> list[dict[str, Any]] | None:
    """Tools that may be called, as OpenAI and the chat templates describe them."""
    if body.tools is None or (body.tool_choice is not None and body.tool_choice.type == "none"):
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        for tool in body.tools
    ]


class MessagesWriter:
    """Replies, whole and in events; see ``replies.Writer``."""

    def __init__(self, body: Messages, running: Running, tokenizer: TokenizerWrapper):
        self._body, self._running = body, running
        self._id = f"msg_{uuid.uuid4().hex}"
        self._said = Said(tokenizer, _tools(body))
        self._count, self._open = 0, False  # blocks that were begun; whether text is the last one

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Make the reply that is sent in one piece."""
        (choice,) = choices
        blocks: list[dict[str, Any]] = []
        for piece in (*self._said.add(choice.text), *self._said.end()):
            if isinstance(piece, Call):
                blocks.append(_tool_use(piece, json.loads(piece.arguments)))
            elif blocks and blocks[-1]["type"] == "text":
                blocks[-1]["text"] += piece
            else:
                blocks.append({"type": "text", "text": piece})
        return self._message(blocks) | self._figures(choices) | self._reason(choice)

    def begin(self) -> Iterator[str]:
        """Yield the message without its content."""
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None}
        prompt = len(self._running.asked[0].prompt)
        message["usage"] = {"input_tokens": prompt, "output_tokens": 0}
        yield _event("message_start", message=message)

    def wrote(self, number: int, text: str, tokens: Sequence[Token]) -> Iterator[str]:
        """Yield new text and calls, if there are any that can be read."""
        for piece in self._said.add(text):
            yield from self._piece(piece)

    def end(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the content's end, why it ended, and the counts."""
        for piece in self._said.end():
            yield from self._piece(piece)
        yield from self._close()
        yield _event("message_delta", delta=self._reason(choices[0]), **self._figures(choices))
        yield _event("message_stop")

    def _piece(self, piece: str | Call) -> Iterator[str]:
        """Yield the events of a piece of text, or of a call, which is a block by itself."""
        called = isinstance(piece, Call)
        if called or not self._open:
            yield from self._close()
            block = _tool_use(piece, {}) if isinstance(piece, Call) else _NO_TEXT
            yield _event("content_block_start", index=self._count, content_block=block)
            self._count, self._open = self._count + 1, True
        delta = {"type": "text_delta", "text": piece}
        if isinstance(piece, Call):
            delta = {"type": "input_json_delta", "partial_json": piece.arguments}
        yield _event("content_block_delta", index=self._count - 1, delta=delta)
        if called:
            yield from self._close()

    def _close(self) -> Iterator[str]:
        if self._open:
            yield _event("content_block_stop", index=self._count - 1)
        self._open = False

    def failed(self, sentence: str) -> str:
        """Make the event of an error."""
        return _event("error", error={"type": "api_error", "message": sentence})

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "content": content,
        }

    def _figures(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The counts; tokens that had been read before are no input tokens here."""
        ended = choices[0].ended
        counts = {
            "input_tokens": ended.prompt_tokens - ended.cached_tokens,
            "cache_read_input_tokens": ended.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": ended.tokens,
        }
        return {"usage": counts, "specstream": figures(choices, self._running)}

    def _reason(self, choice: Choice) -> dict[str, Any]:
        met = choice.ended.stopped_by
        reason = "tool_use" if self._said.calls else "end_turn"
        if choice.ended.reason == "length":
            reason = "max_tokens"
        return {"stop_reason": "stop_sequence" if met else reason, "stop_sequence": met}


_NO_TEXT = {"type": "text", "text": ""}


def _tool_use(call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _event(kind: str, **values: Any) -> str:
    return event({"type": kind, **values}, kind)
