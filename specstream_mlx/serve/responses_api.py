"""OpenAI's ``/v1/responses``: text and calls of functions; nothing is stored."""

import uuid
from typing import Any

from ..thoughts import Thought
from .client_request import (
    ClientRequest,
    earlier_call,
    request_of,
    schema_of,
    text_of,
    thought_of,
    tools_of,
)
from .fields import FUNCTION, RefusedError
from .replies import Choice, Choices, Events, ItemWriter, event, usage


def request_of_response(body: dict[str, Any]) -> ClientRequest:
    if "max_output_tokens" in body:
        body = body | {"max_tokens": body["max_output_tokens"]}
    offered = tools_of(body)
    offered["tools"] = offered["tools"] and [
        {"type": "function", "function": {n: v for n, v in tool.items() if n != "type"}}
        for tool in offered["tools"]
    ]
    schema = schema_of(body.get("text", {}).get("format"))
    items = body["input"] if isinstance(body["input"], list) else []
    reasoned = [item for item in items if item.get("type") == "reasoning"]
    if any(item.get("encrypted_content") and not _thought(item) for item in reasoned):
        offered["ignored"].append("reasoning")
    return request_of(body, _turns(body), schema=schema, thoughts_field="reasoning", **offered)


def _thought(item: dict[str, Any]) -> str:
    return thought_of(item.get("content")) or thought_of(item.get("summary"))


def _turns(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the turns of a chat template: a call is part of the assistant's turn before it.

    Thoughts are of the assistant's turn that they precede.
    """
    turns: list[dict[str, Any]] = []
    thoughts: list[str] = []
    if "instructions" in body:
        turns.append({"role": "system", "content": body["instructions"]})
    if isinstance(body["input"], str):
        return [*turns, {"role": "user", "content": body["input"]}]
    for item in body["input"]:
        match item.get("type"):
            case "function_call":
                if not turns or turns[-1]["role"] != "assistant":
                    turns.append({"role": "assistant", "content": ""})
                call = earlier_call(item["call_id"], item, "input")
                turns[-1].setdefault("tool_calls", []).append(call)
                _think(turns[-1], thoughts)
            case "reasoning":
                thoughts += filter(None, (_thought(item),))
            case "function_call_output":
                turn = {"role": "tool", "content": text_of(item["output"])}
                turns.append(turn | {"tool_call_id": item["call_id"]})
            case _:
                role = "system" if item["role"] == "developer" else item["role"]
                turns.append({"role": role, "content": text_of(item["content"])})
                _think(turns[-1], thoughts)
    if not turns:
        raise RefusedError(400, "the input has no message", "input")
    return turns


def _think(turn: dict[str, Any], thoughts: list[str]) -> None:
    """Let thoughts be those of a turn, if that is the assistant's; they are of no other."""
    if thoughts and turn["role"] == "assistant":
        before = turn.get("reasoning_content", "")
        turn["reasoning_content"] = "\n\n".join(filter(None, (before, *thoughts)))
    thoughts.clear()


class ResponseWriter(ItemWriter):
    """Replies of ``/v1/responses``, whole and in events."""

    prefix, count = "resp_", 0

    def reply(self, choices: Choices) -> dict[str, Any]:
        cut, counts = choices[0].reason == "length", usage(choices, ("input", "output"))
        counts["output_tokens_details"] = {"reasoning_tokens": choices[0].thought_tokens}
        return self._response("incomplete" if cut else "completed") | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": counts,
            "specstream": self.figures(choices),
        }

    def begin(self, choices: Choices) -> Events:
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def end(self, choices: Choices) -> Events:
        yield from self.complete(choices[0])
        response = self.reply(choices)
        yield self._event(response["status"], response=response)

    def failed(self, sentence: str) -> str:
        error = {"code": "server_error", "message": sentence}
        return self._event("failed", response=self._response("failed") | {"error": error})

    def complete(self, choice: Choice) -> Events:
        if not self.items:  # an empty text is an item
            yield from self.wrote(choice, [""])
        yield from super().complete(choice)

    def called(self, call_id: str, name: str, arguments: str) -> Events:
        item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
        yield self._added("fc", item)
        item |= {"arguments": arguments, "status": "completed"}
        yield self._of_item("function_call_arguments.delta", delta=arguments)
        yield self._of_item("function_call_arguments.done", arguments=arguments)
        yield self._done(item)

    def opened(self, kind: type) -> Events:
        if kind is Thought:
            item: dict[str, Any] = {"type": "reasoning", "summary": [], "content": []}
            yield self._added("rs", item)
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        else:
            item = {"type": "message", "role": "assistant", "content": []}
            yield self._added("msg", item)
            item["content"] = [_part("")]
        yield self._of_item("content_part.added", content_index=0, part=item["content"][0])

    def grown(self, text: str) -> Events:
        part = self.items[-1]["content"][0]
        if text:
            part["text"] += text
            more: dict[str, Any] = {"logprobs": []} if "logprobs" in part else {}
            yield self._of_item(f"{part['type']}.delta", content_index=0, delta=text, **more)

    def closed(self, status: str) -> Events:
        item = self.items[-1]
        item["status"], part = status, item["content"][0]
        text = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._of_item(f"{part['type']}.done", content_index=0, **text)
        yield self._of_item("content_part.done", content_index=0, part=part)
        yield self._done(item)

    def _added(self, prefix: str, item: dict[str, Any]) -> str:
        item |= {"id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress"}
        self.items.append(item)
        return self._event("output_item.added", output_index=len(self.items) - 1, item=item)

    def _done(self, item: dict[str, Any]) -> str:
        return self._event("output_item.done", output_index=len(self.items) - 1, item=item)

    def _of_item(self, kind: str, **values: Any) -> str:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return self._event(kind, **place, **values)

    def _response(self, status: str) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": body["model"],
            "output": self.items,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata", {}),
            "parallel_tool_calls": True,
            "store": False,
            "temperature": body.get("temperature", 0.0),
            "text": {"format": body.get("text", {}).get("format") or {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": [dict.fromkeys(FUNCTION) | tool for tool in body.get("tools", ())],
            "top_p": body.get("top_p"),
            "usage": None,
        }

    def _event(self, kind: str, **values: Any) -> str:
        self.count += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self.count - 1, **values}, name)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
