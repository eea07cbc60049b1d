"""OpenAI's ``/v1/responses``: text in, text out; nothing is stored."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .bodies import JSONFormat, NamedSchemaFormat, Response, text_of
from .decoding import Token
from .replies import Choice, event, figures, usage
from .service import Running, Wish


def wish_of_response(body: Response) -> Wish:
    """What a request asks for."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": body.input}]
    if not isinstance(body.input, str):
        roles = {"developer": "system"}
        turns = [
            {"role": roles.get(one.role, one.role), "content": text_of(one.content)}
            for one in body.input
        ]
    if body.instructions is not None:
        turns.insert(0, {"role": "system", "content": body.instructions})
    wanted, schema = body.text and body.text.format, None
    if isinstance(wanted, JSONFormat):
        schema = {"type": "object"}
    elif isinstance(wanted, NamedSchemaFormat):
        schema = wanted.schema_
    return Wish(
        model=body.model,
        prompt=turns,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        draft=body.draft,
        schema=schema,
    )


class ResponseWriter:
    """Replies, whole and in events; see ``replies.Writer``."""

    def __init__(self, body: Response, running: Running, _: TokenizerWrapper):
        self._body, self._running = body, running
        self._id, self._item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created, self._count, self._text = int(time.time()), 0, ""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Make the reply that is sent in one piece."""
        (choice,) = choices
        cut = choice.ended.reason == "length"
        status = "incomplete" if cut else "completed"
        counts = usage(choices, ("input", "output"))
        counts["output_tokens_details"] = {"reasoning_tokens": 0}
        return self._response(status, [self._item(choice.text, status)]) | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": counts,
            "specstream": figures(choices, self._running),
        }

    def begin(self) -> Iterator[str]:
        """Yield the response and its item without text."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress", []))
        item = self._item(None, "in_progress")
        yield self._event("output_item.added", output_index=0, item=item)
        yield self._part("content_part.added", part=_part(""))

    def wrote(self, number: int, text: str, tokens: Sequence[Token]) -> Iterator[str]:
        """Yield new text, if there is any that can be read."""
        if text:
            yield self._part("output_text.delta", delta=text, logprobs=[])

    def end(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the ends of text, item and response."""
        whole, text = self.whole(choices), choices[0].text
        yield self._part("output_text.done", text=text, logprobs=[])
        yield self._part("content_part.done", part=_part(text))
        yield self._event("output_item.done", output_index=0, item=whole["output"][0])
        yield self._event(whole["status"], response=whole)

    def failed(self, sentence: str) -> str:
        """Make the event of an error."""
        error = {"code": "server_error", "message": sentence}
        return self._event("failed", response=self._response("failed", []) | {"error": error})

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body = self._body
        said = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": body.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": False,
            "store": False,
            "temperature": self._running.asked[0].sampling.temp,
            "text": said or {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "usage": None,
        }

    def _item(self, text: str | None, status: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [_part(text)],
        }

    def _part(self, kind: str, **values: Any) -> str:
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **values)

    def _event(self, kind: str, **values: Any) -> str:
        self._count += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._count - 1, **values}, name)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
