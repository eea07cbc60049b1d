"""Anthropic's ``/v1/messages``."""

import json
from collections.abc import Iterator
from typing import Any

from .client_request import ClientRequest, request_of, text_of, tools_of
from .fields import RefusedError
from .replies import Choice, Choices, Events, ItemWriter, event
from .tool_calls import called


def request_of_messages(body: dict[str, Any]) -> ClientRequest:
    turns = [turn for message in body["messages"] for turn in _turns(message)]
    if system := text_of(body.get("system")):
        turns.insert(0, {"role": "system", "content": system})
    offered = tools_of(body, "custom")
    offered["tools"] = offered["tools"] and [*map(_tool, offered["tools"])]
    if body.get("thinking", {}).get("type", "disabled") != "disabled":
        offered["ignored"].append("thinking")
    return request_of(body, turns, stop=body.get("stop_sequences", ()), **offered)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Describe a tool as OpenAI and the chat templates do."""
    described = {"name": tool["name"], "description": tool.get("description") or ""}
    return {"type": "function", "function": described | {"parameters": tool["input_schema"]}}


def _turns(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the turns of a chat template: results are turns of their own, calls are with text."""
    role, blocks = message["role"], message["content"]
    if isinstance(blocks, str):
        yield {"role": role, "content": blocks}
        return
    wrong = "tool_result" if role == "assistant" else "tool_use"
    if any(block["type"] == wrong for block in blocks):
        raise RefusedError(400, f"a {wrong} stands in a turn of the {role}", "messages")
    for block in blocks:
        if block["type"] == "tool_result":
            text = "Error: " if block.get("is_error") else ""
            text += text_of(block.get("content")) or ""
            yield {"role": "tool", "content": text, "tool_call_id": block["tool_use_id"]}
    parts = [block for block in blocks if "text" in block]
    uses = [block for block in blocks if block["type"] == "tool_use"]
    calls = [called(use["id"], use["name"], use["input"]) for use in uses]
    if parts or calls or not blocks:
        turn = {"role": role, "content": text_of(parts)}
        yield turn | ({"tool_calls": calls} if calls else {})


class MessagesWriter(ItemWriter):
    """Replies of ``/v1/messages``, whole and in events; an item is a block of content."""

    prefix = "msg_"

    def reply(self, choices: Choices) -> dict[str, Any]:
        return self._message(self.items) | self._counts(choices) | self._reason(choices[0])

    def begin(self, choices: Choices) -> Events:
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None}
        message["usage"] = {"input_tokens": len(choices[0].job.prompt), "output_tokens": 0}
        yield _event("message_start", message=message)

    def end(self, choices: Choices) -> Events:
        yield from self.complete(choices[0])
        yield _event("message_delta", delta=self._reason(choices[0]), **self._counts(choices))
        yield _event("message_stop")

    def failed(self, sentence: str) -> str:
        return _event("error", error={"type": "api_error", "message": sentence})

    def called(self, its_id: str, name: str, arguments: str) -> Events:
        block = {"type": "tool_use", "id": its_id, "name": name, "input": {}}
        self.items.append(block)
        yield self._of_block("start", content_block=block)
        block["input"] = json.loads(arguments)
        delta = {"type": "input_json_delta", "partial_json": arguments}
        yield self._of_block("delta", delta=delta)
        yield self._of_block("stop")

    def opened(self) -> Events:
        self.items.append({"type": "text", "text": ""})
        yield self._of_block("start", content_block=self.items[-1])

    def grown(self, text: str) -> Events:
        self.items[-1]["text"] += text
        yield self._of_block("delta", delta={"type": "text_delta", "text": text})

    def closed(self, status: str) -> Events:
        yield self._of_block("stop")

    def _of_block(self, kind: str, **values: Any) -> str:
        return _event(f"content_block_{kind}", index=len(self.items) - 1, **values)

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"id": self.id, "type": "message", "role": "assistant"}
        return message | {"model": self.body["model"], "content": content}

    def _counts(self, choices: Choices) -> dict[str, Any]:
        """Return the counts; tokens that had been read before are no input tokens here."""
        ended = choices[0].ended
        usage = {
            "input_tokens": len(choices[0].job.prompt) - ended.cached_tokens,
            "cache_read_input_tokens": ended.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": ended.last.generation_tokens,
        }
        return {"usage": usage, "specstream": self.figures(choices)}

    def _reason(self, choice: Choice) -> dict[str, Any]:
        stop, reason = choice.ended.stopped_by, "tool_use" if choice.calls else "end_turn"
        if choice.reason == "length":
            reason = "max_tokens"
        return {"stop_reason": "stop_sequence" if stop else reason, "stop_sequence": stop}


def _event(kind: str, **values: Any) -> str:
    return event({"type": kind, **values}, kind)
