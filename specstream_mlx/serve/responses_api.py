"""OpenAI's ``/v1/responses``: text and calls of functions; nothing is stored."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .bodies import (
    FunctionCall,
    FunctionCallOutput,
    JSONFormat,
    NamedSchemaFormat,
    Response,
    text_of,
)
from .decoding import Token
from .openai_api import earlier_call
from .replies import Choice, event, figures, usage
from .service import Running, Wish
from .tool_calls import Call, Said


def wish_of_response(body: Response) -> Wish:
    """What a request asks for."""
    turns = _turns(body)
    if body.instructions is not None:
        turns.insert(0, {"role": "system", "content": body.instructions})
    wanted, schema = body.text and body.text.format, None
    if isinstance(wanted, JSONFormat):
        schema = {"type": "object"}
    elif isinstance(wanted, NamedSchemaFormat):
        schema = wanted.schema_
    most, tools = body.max_output_tokens, _tools(body)
    return Wish(prompt=turns, max_tokens=most, tools=tools, schema=schema, **body.said())


def _turns(body: Response) -> list[dict[str, Any]]:
    """The turns of a chat template: a call is part of the assistant's turn before it."""
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    turns: list[dict[str, Any]] = []
    for item in body.input:
        if isinstance(item, FunctionCall):
            if not turns or turns[-1]["role"] != "assistant":
                turns.append({"role": "assistant", "content": ""})
            call = earlier_call(item.call_id, item, "input")
            turns[-1].setdefault("tool_calls", []).append(call)
        elif isinstance(item, FunctionCallOutput):
            said = {"role": "tool", "content": text_of(item.output)}
            turns.append(said | {"tool_call_id": item.call_id})
        else:
            role = "system" if item.role == "developer" else item.role
            turns.append({"role": role, "content": text_of(item.content)})
    return turns


def _tools(body: Response) -> list[dict[str, Any]] | None:
    """Tools that may be called, as the chat templates know them."""
    if body.tools is None or body.tool_choice == "none":
        return None
    return [
        {"type": tool.type, "function": tool.model_dump(exclude_unset=True, exclude={"type"})}
        for tool in body.tools
    ]


class ResponseWriter:
    """Replies, whole and in events; see ``replies.Writer``."""

    def __init__(self, body: Response, running: Running, tokenizer: TokenizerWrapper):
        self._body, self._running = body, running
        self._id, self._created = f"resp_{uuid.uuid4().hex}", int(time.time())
        self._said, self._count = Said(tokenizer, _tools(body)), 0
        self._output: list[dict[str, Any]] = []
        self._open = False  # whether the last item is a message that may go on

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Make the reply that is sent in one piece."""
        for _ in (*self.wrote(0, choices[0].text, ()), *self._complete(choices[0])):
            pass  # what makes the events makes the items
        return self._ended(choices)

    def begin(self) -> Iterator[str]:
        """Yield the response without items."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def wrote(self, number: int, text: str, tokens: Sequence[Token]) -> Iterator[str]:
        """Yield new text and calls, if there are any that can be read."""
        for piece in self._said.add(text):
            yield from self._piece(piece)

    def end(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the ends of the last item and of the response."""
        yield from self._complete(choices[0])
        response = self._ended(choices)
        yield self._event(response["status"], response=response)

    def failed(self, sentence: str) -> str:
        """Make the event of an error."""
        error = {"code": "server_error", "message": sentence}
        return self._event("failed", response=self._response("failed") | {"error": error})

    def _piece(self, piece: str | Call) -> Iterator[str]:
        """Yield the events of a piece of text, or of a call, which is an item by itself."""
        if isinstance(piece, Call):
            yield from self._close("completed")
            yield from self._call(piece)
            return
        if not self._open:
            message: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
            yield self._add("msg", message)
            message["content"] = [_part("")]
            self._open = True
            yield self._of_part("content_part.added", part=_part(""))
        if piece:
            self._output[-1]["content"][0]["text"] += piece
            yield self._of_part("output_text.delta", delta=piece, logprobs=[])

    def _call(self, call: Call) -> Iterator[str]:
        named = {"call_id": call.id, "name": call.name}
        yield self._add("fc", {"type": "function_call", **named, "arguments": ""})
        self._output[-1] |= {"arguments": call.arguments, "status": "completed"}
        said = "function_call_arguments"
        yield self._of_item(f"{said}.delta", delta=call.arguments)
        yield self._of_item(f"{said}.done", arguments=call.arguments)
        yield self._done()

    def _complete(self, choice: Choice) -> Iterator[str]:
        """Yield what was held back, and the last item's end; a text that is empty is an item."""
        for piece in self._said.end():
            yield from self._piece(piece)
        if not self._output:
            yield from self._piece("")
        yield from self._close(_status(choice))

    def _close(self, status: str) -> Iterator[str]:
        """Yield the ends of a message, if there is one that may go on."""
        if not self._open:
            return
        self._open, item = False, self._output[-1]
        item["status"], part = status, item["content"][0]
        yield self._of_part("output_text.done", text=part["text"], logprobs=[])
        yield self._of_part("content_part.done", part=part)
        yield self._done()

    def _add(self, prefix: str, item: dict[str, Any]) -> str:
        """Begin an item of the output."""
        item |= {"id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress"}
        self._output.append(item)
        return self._event("output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self) -> str:
        last = len(self._output) - 1
        return self._event("output_item.done", output_index=last, item=self._output[last])

    def _of_item(self, kind: str, **values: Any) -> str:
        """An event of the last item."""
        last = len(self._output) - 1
        place = {"item_id": self._output[last]["id"], "output_index": last}
        return self._event(kind, **place, **values)

    def _of_part(self, kind: str, **values: Any) -> str:
        """An event of the text of the last item."""
        return self._of_item(kind, content_index=0, **values)

    def _ended(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The response with its counts."""
        counts, status = usage(choices, ("input", "output")), _status(choices[0])
        counts["output_tokens_details"] = {"reasoning_tokens": 0}
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._response(status) | {
            "incomplete_details": cut,
            "usage": counts,
            "specstream": figures(choices, self._running),
        }

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        said = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": body.model,
            "output": self._output,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": True,
            "store": False,
            "temperature": self._running.asked[0].sampling.temp,
            "text": said or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": body.top_p,
            "usage": None,
        }

    def _event(self, kind: str, **values: Any) -> str:
        self._count += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._count - 1, **values}, name)


def _status(choice: Choice) -> str:
    return "incomplete" if choice.ended.reason == "length" else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
