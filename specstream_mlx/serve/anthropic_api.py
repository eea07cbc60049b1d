"""Anthropic's ``/v1/messages``."""

import json
from collections.abc import Iterator
from typing import Any

from ..thoughts import Thought
from .client_request import ClientRequest, request_of, text_of, thought_of, tools_of
from .fields import RefusedError
from .replies import Choice, Choices, Events, ItemWriter, event
from .tool_calls import called


def request_of_messages(body: dict[str, Any]) -> ClientRequest:
    turns = [turn for message in body["messages"] for turn in _turns(message)]
    if system := text_of(body.get("system")):
        turns.insert(0, {"role": "system", "content": system})
    offered = tools_of(body, "custom")
    offered["tools"] = offered["tools"] and [*map(_tool, offered["tools"])]
    blocks = [one["content"] for one in body["messages"] if isinstance(one["content"], list)]
    if any(block["type"] == "redacted_thinking" for some in blocks for block in some):
        offered["ignored"].append("redacted_thinking")
    asked = body.get("thinking", {"type": "disabled"})
    if asked["type"] != "disabled":  # which the model may not know
        offered["ignored"].append("thinking")
    if asked.get("budget_tokens"):
        offered["ignored"].append("thinking.budget_tokens")
    stop = body.get("stop_sequences", ())
    return request_of(body, turns, stop=stop, thoughts_field="thinking", **offered)


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
    thought = thought_of([block for block in blocks if block["type"] == "thinking"])
    if parts or calls or thought or not any(block["type"] == "tool_result" for block in blocks):
        turn = {"role": role, "content": text_of(parts)}
        turn |= {"reasoning_content": thought} if thought and role == "assistant" else {}
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

    def opened(self, kind: type) -> Events:
        if kind is Thought:
            self.items.append({"type": "thinking", "thinking": "", "signature": ""})
        else:
            self.items.append({"type": "text", "text": ""})
        yield self._of_block("start", content_block=self.items[-1])

    def grown(self, text: str) -> Events:
        kind = self.items[-1]["type"]
        if kind == "thinking" and self._hides_thoughts:
            return
        self.items[-1][kind] += text
        yield self._of_block("delta", delta={"type": f"{kind}_delta", kind: text})

    def closed(self, status: str) -> Events:
        if self.items[-1]["type"] == "thinking":  # which clients want signed, to send it back
            signature = f"{self.id}_{len(self.items)}"
            self.items[-1]["signature"] = signature
            yield self._of_block("delta", delta={"type": "signature_delta", "signature": signature})
        yield self._of_block("stop")

    @property
    def _hides_thoughts(self) -> bool:
        return (self.body.get("thinking") or {}).get("display") == "omitted"

    def _of_block(self, kind: str, **values: Any) -> str:
        return _event(f"content_block_{kind}", index=len(self.items) - 1, **values)

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"id": self.id, "type": "message", "role": "assistant"}
        return message | {"model": self.body["model"], "content": content}

    def _counts(self, choices: Choices) -> dict[str, Any]:
        """Return the counts; tokens that had been read before are no input tokens here."""
        ended = choices[0].ended
        usage: dict[str, Any] = {
            "input_tokens": len(choices[0].job.prompt) - ended.cached_tokens,
            "cache_read_input_tokens": ended.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": ended.last.generation_tokens,
        }
        if thought := choices[0].thought_tokens:
            usage["output_tokens_details"] = {"thinking_tokens": thought}
        return {"usage": usage, "specstream": self.figures(choices)}

    def _reason(self, choice: Choice) -> dict[str, Any]:
        stop, reason = choice.ended.stopped_by, "tool_use" if choice.calls else "end_turn"
        if choice.reason == "length":
            reason = "max_tokens"
        return {"stop_reason": "stop_sequence" if stop else reason, "stop_sequence": stop}


def _event(kind: str, **values: Any) -> str:
    return event({"type": kind, **values}, kind)
