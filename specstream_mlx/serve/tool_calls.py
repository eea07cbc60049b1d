"""What a model writes, split while it comes into thoughts, what is said, and calls of tools.

How a model writes calls is its chat template's affair: mlx-lm knows the marks around them and how
to read what stands between (``mlx_lm.tool_parsers``), by the tokenizer.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..thoughts import Thought, ThoughtParser, begun

Piece = str | Thought | dict[str, Any]
"""What is said, thought, or called; see ``called``."""


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join what is said, and what is thought, without something else between."""
    for kind, some in groupby(pieces, type):
        if kind is str:
            yield "".join(piece for piece in some if isinstance(piece, str))
        elif kind is Thought:
            yield Thought("".join(piece.text for piece in some if isinstance(piece, Thought)))
        else:
            yield from some


def called(its_id: str | None, name: str, arguments: Any) -> dict[str, Any]:
    """Make a call as OpenAI writes it; in chat templates, the arguments are no text."""
    function = {"name": name, "arguments": arguments}
    return {"id": its_id, "type": "function", "function": function}


def call_marks(
    tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]] | None
) -> tuple[str, str] | None:
    """Return the marks around calls, if there is something to call; some have no second one."""
    if not tools or tokenizer.tool_call_start is None:
        return None
    return tokenizer.tool_call_start, tokenizer.tool_call_end or ""


class ReplyParser:
    """Splits one text into thoughts, in which nothing is called, what is said, and ``calls``.

    What ``fits`` a schema is JSON after a thought, and calls nothing.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        tools: Sequence[dict[str, Any]] | None,
        prompt: Sequence[int] = (),
        fits: bool = False,
    ):
        self._calls = ToolCallParser(tokenizer, None if fits else tools)
        self._thoughts = ThoughtParser(tokenizer, prompt, call_marks(tokenizer, tools), fits)
        self.calls = self._calls.calls

    @property
    def is_in_thought(self) -> bool:
        return self._thoughts.is_inside

    def add(self, text: str) -> Iterator[Piece]:
        """Yield what is known of the text now, in its order."""
        yield from self._with_calls(self._thoughts.add(text))

    def end(self) -> Iterator[Piece]:
        """Yield what was held back, once the text is complete."""
        yield from self._with_calls(self._thoughts.end())
        yield from self._calls.end()

    def _with_calls(self, pieces: Iterator[str | Thought]) -> Iterator[Piece]:
        for piece in pieces:
            if isinstance(piece, Thought):
                yield from self._calls.pause()
                yield piece
            else:
                yield from self._calls.add(piece)


class ToolCallParser:
    """Splits what is said into text, without white space around calls, and the ``calls``."""

    def __init__(self, tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]] | None):
        self.calls: list[dict[str, Any]] = []
        self._parse, self._tools = tokenizer.tool_parser, tools
        self._start: str | None = tokenizer.tool_call_start if tools else None
        self._end: str = tokenizer.tool_call_end or ""  # empty: a call goes to the text's end
        self._rest, self._in_call, self._opening = "", False, ""

    def add(self, text: str) -> Iterator[Piece]:
        """Yield what is known of the text now, in its order."""
        if self._start is None:
            if text:
                yield text
            return
        self._rest += text
        while True:
            mark = self._end if self._in_call else self._start
            before, met, after = self._rest.partition(mark) if mark else (self._rest, "", "")
            if not met:
                break
            if self._in_call:
                yield from self._called(before)
            else:
                said = before.rstrip()
                self._opening = before[len(said) :] + met
                if said:
                    yield said
            self._rest, self._in_call = after, not self._in_call
        if not self._in_call:
            sure = self._rest[: len(self._rest) - begun(self._rest, self._start)].rstrip()
            self._rest = self._rest[len(sure) :]
            if sure:
                yield sure

    def pause(self) -> Iterator[Piece]:
        """Yield what was held back, but for white space, before something else comes."""
        last, self._rest = self._rest.rstrip(), ""
        if last:
            yield last

    def end(self) -> Iterator[Piece]:
        """Yield what was held back, once the text is complete."""
        last, self._rest = self._rest, ""
        if self._in_call:
            yield from self._called(last, whole=not self._end)
        elif last.strip() or (last and not self.calls):
            yield last

    def _called(self, text: str, whole: bool = True) -> Iterator[Piece]:
        """Yield the calls that stand between two marks, or else the text with its marks."""
        try:
            read = self._parse(text, self._tools)
            calls = [_call(one) for one in (read if isinstance(read, list) else [read])]
        except Exception:  # a parser may raise anything at what a model writes
            yield f"{self._opening}{text}{self._end if whole else ''}"
            return
        self.calls += calls
        yield from calls


def _call(read: dict[str, Any]) -> dict[str, Any]:
    name, arguments, its_id = read["name"], read.get("arguments") or {}, read.get("id")
    if isinstance(arguments, str):  # some models write the arguments as text
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("a call has a name and arguments")
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    written.encode()  # half a character of UTF-16 is no text
    if not isinstance(its_id, str) or not its_id:
        its_id = f"call_{uuid.uuid4().hex[:24]}"
    return called(its_id, name, written)
