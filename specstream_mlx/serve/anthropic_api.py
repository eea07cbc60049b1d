"""Anthropic's ``/v1/messages``."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .bodies import Messages, text_of
from .decoding import Token
from .replies import Choice, event, figures
from .service import Running, Wish


def wish_of_messages(body: Messages) -> Wish:
    """What a request asks for."""
    turns: list[dict[str, Any]] = [
        {"role": one.role, "content": text_of(one.content)} for one in body.messages
    ]
    if system := text_of(body.system):
        turns.insert(0, {"role": "system", "content": system})
    return Wish(
        model=body.model,
        prompt=turns,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        stop=body.stop_sequences,
        draft=body.draft,
    )


class MessagesWriter:
    """Replies, whole and in events; see ``replies.Writer``."""

    def __init__(self, body: Messages, running: Running, _: TokenizerWrapper):
        self._body, self._running = body, running
        self._id = f"msg_{uuid.uuid4().hex}"

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Make the reply that is sent in one piece."""
        (choice,) = choices
        return self._message(choice.text) | self._figures(choices) | self._reason(choice)

    def begin(self) -> Iterator[str]:
        """Yield the message without its text, and the beginning of that."""
        message = self._message(None) | {"stop_reason": None, "stop_sequence": None}
        prompt = len(self._running.asked[0].prompt)
        message["usage"] = {"input_tokens": prompt, "output_tokens": 0}
        yield _event("message_start", message=message)
        block = {"type": "text", "text": ""}
        yield _event("content_block_start", index=0, content_block=block)

    def wrote(self, number: int, text: str, tokens: Sequence[Token]) -> Iterator[str]:
        """Yield new text, if there is any that can be read."""
        if text:
            delta = {"type": "text_delta", "text": text}
            yield _event("content_block_delta", index=0, delta=delta)

    def end(self, choices: Sequence[Choice]) -> Iterator[str]:
        """Yield the text's end, why it ended, and the counts."""
        yield _event("content_block_stop", index=0)
        yield _event("message_delta", delta=self._reason(choices[0]), **self._figures(choices))
        yield _event("message_stop")

    def failed(self, sentence: str) -> str:
        """Make the event of an error."""
        return _event("error", error={"type": "api_error", "message": sentence})

    def _message(self, text: str | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "content": [] if text is None else [{"type": "text", "text": text}],
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
        reason = "max_tokens" if choice.ended.reason == "length" else "end_turn"
        return {"stop_reason": "stop_sequence" if met else reason, "stop_sequence": met}


def _event(kind: str, **values: Any) -> str:
    return event({"type": kind, **values}, kind)
