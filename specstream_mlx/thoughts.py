"""Thoughts: what a model writes between its tokenizer's ``think_start`` and ``think_end``.

mlx_lm knows these marks. They are found in the text, since a model may write one in several tokens;
a prompt that ends within a thought, as some chat templates let it, has begun one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

Part = Literal["content", "thought", "mark"]


@dataclass(frozen=True)
class Thought:
    """A piece of a thought."""

    text: str


def opens_thought(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> bool:
    """Tell whether a prompt ends within a thought."""
    if tokenizer.think_start is None:
        return False
    return tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)


def begun(text: str, mark: str) -> int:
    """Number of characters at the end of a text that may be the beginning of a mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)


class ThoughtSplitter:
    """Splits a text while it comes; the parts together are the text.

    ``closed``: marks of what holds no thoughts, such as those around calls of tools. With ``first``
    only a text's beginning may be a thought: JSON, say, holds none, whatever its strings spell.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        prompt: Sequence[int] = (),
        closed: tuple[str, str] | None = None,
        first: bool = False,
    ):
        start, end = tokenizer.think_start, tokenizer.think_end
        self.thinks = start is not None and end is not None
        states = "content", "closed", "thought", "said"
        self._marks: dict[str, dict[str, str]] = {state: {} for state in states}
        if self.thinks:
            self._marks["content"][start] = "thought"
            self._marks["thought"][end] = "said" if first else "content"
        if closed is not None:
            opening, closing = closed
            self._marks["content"][opening] = "closed"
            if closing:  # else it goes on to the text's end
                self._marks["closed"][closing] = "content"
        self._state = "thought" if self.thinks and opens_thought(tokenizer, prompt) else "content"
        self._rest, self._first = "", start if first and self.thinks else None

    @property
    def is_inside(self) -> bool:
        """Whether the text so far ends within a thought."""
        return self._state == "thought"

    def add(self, text: str) -> Iterator[tuple[Part, str]]:
        """Yield what is known of the text now; what may begin a mark is held back."""
        self._rest += text
        if self._first is not None and self._state == "content":
            size = min(len(self._rest), len(self._first))
            if self._rest[:size] != self._first[:size]:
                self._state = "said"
        while True:
            marks = self._marks[self._state]
            places = [(self._rest.find(mark), mark) for mark in marks if mark in self._rest]
            if not places:
                break
            place, mark = min(places)
            if place:
                yield self._part, self._rest[:place]
            before, self._state = self._state, marks[mark]
            self._rest = self._rest[place + len(mark) :]
            yield ("mark" if "thought" in (before, self._state) else "content"), mark
        size = len(self._rest) - max((begun(self._rest, mark) for mark in marks), default=0)
        sure, self._rest = self._rest[:size], self._rest[size:]
        if sure:
            yield self._part, sure

    def end(self) -> Iterator[tuple[Part, str]]:
        """Yield what was held back, once the text is complete."""
        if self._rest:
            yield self._part, self._rest
        self._rest = ""

    @property
    def _part(self) -> Part:
        return "thought" if self.is_inside else "content"


class ThoughtTokens:
    """Tells of each token, by the text that came with it, whether it belongs to a thought."""

    def __init__(self, tokenizer: TokenizerWrapper, prompt: Sequence[int] = ()):
        self._splitter = ThoughtSplitter(tokenizer, prompt)

    def add(self, text: str) -> bool:
        before = self._splitter.is_inside
        for _ in self._splitter.add(text):
            pass
        return before or self._splitter.is_inside


class ThoughtParser:
    """Yields thoughts and what is said, without the marks and without white space around thoughts.

    A text without thoughts comes as it is.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        prompt: Sequence[int] = (),
        closed: tuple[str, str] | None = None,
        first: bool = False,
    ):
        self._splitter = ThoughtSplitter(tokenizer, prompt, closed, first)
        self._begins = self._splitter.thinks  # whether white space now is at a part's beginning
        self._thought = self._splitter.is_inside  # whether there has been a thought
        self._spaces = ""  # before a first thought or at a thought's end, if one follows

    @property
    def is_inside(self) -> bool:
        """Whether the text so far ends within a thought."""
        return self._splitter.is_inside

    def add(self, text: str) -> Iterator[str | Thought]:
        """Yield what is known of the text now, in its order."""
        for part, piece in self._splitter.add(text):
            yield from self._add(part, piece)

    def end(self) -> Iterator[str | Thought]:
        """Yield what was held back, once the text is complete."""
        for part, piece in self._splitter.end():
            yield from self._add(part, piece)
        if self._spaces and not self._thought:
            yield self._spaces

    def _add(self, part: Part, piece: str) -> Iterator[str | Thought]:
        if part == "mark":
            self._begins, self._thought, self._spaces = True, True, ""
            return
        if self._begins:
            said = piece.lstrip()
            if not said:
                self._spaces += "" if self._thought else piece
                return
            piece = said if self._thought else self._spaces + piece
            self._begins, self._spaces = False, ""
        if part == "content":
            yield piece
            return
        piece = self._spaces + piece
        thought = piece.rstrip()
        self._spaces = piece[len(thought) :]
        if thought:
            yield Thought(thought)


class AfterThought:
    """A logits processor that has no say in a thought: its text begins after that.

    A text may begin with a thought if ``may_think``, or has begun with one in the prompt. The
    processor gets the tokens without those of the thought.
    """

    def __init__(
        self,
        processor: LogitsProcessor,
        tokenizer: TokenizerWrapper,
        prompt: Sequence[int],
        may_think: bool = True,
    ):
        self._processor, self._tokenizer = processor, tokenizer
        self._prompt_tokens = len(prompt)
        self._opened = opens_thought(tokenizer, prompt)
        self._may_think = may_think and not self._opened and tokenizer.think_start is not None
        self._inside: list[int] = []  # tokens that end within the thought
        self._ended: list[int] = []  # tokens of a whole thought
        self._vocab: dict[str, int] = tokenizer.get_vocab() if self._may_think else {}

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        path: Any = tokens[self._prompt_tokens :].tolist()
        begins, opening = 0, None
        if self._may_think:
            begins, opening = self._begin(path)
        if opening is not None:
            may_follow = mx.zeros(logits.shape[-1], mx.bool_)
            may_follow[mx.array(self._next(opening))] = True
            others = self._processor(tokens, logits) if not path else -mx.inf
            return mx.where(may_follow, logits, others)
        if self._opened or begins:
            ends = self._end(path, begins)
            if ends is None:
                return logits
            tokens = tokens[ends:]
        return self._processor(tokens, logits)

    def _begin(self, path: list[int]) -> tuple[int, str | None]:
        """Return how many tokens begin a thought, or the part of its mark that there is so far."""
        mark = self._tokenizer.think_start
        for size in range(len(mark) + 1):
            text = self._tokenizer.decode(path[:size])
            if text.startswith(mark):
                return size, None
            if not mark.startswith(text):
                break
            if size == len(path):
                return 0, text
        return 0, None

    def _next(self, opening: str) -> list[int]:
        """Return the tokens that go on with the mark."""
        rest = self._tokenizer.think_start[len(opening) :]
        pieces = (rest[: size + 1] for size in range(len(rest)))
        return [self._vocab[piece] for piece in pieces if piece in self._vocab]

    def _end(self, path: list[int], begins: int) -> int | None:
        """Return after how many tokens the thought has ended."""
        if self._ended and path[: len(self._ended)] == self._ended:
            return len(self._ended)
        mark = self._tokenizer.think_end
        pairs = zip(self._inside, path, strict=False)
        same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        for size in range(max(same, begins) + 1, len(path) + 1):
            # A mark has no more tokens than bytes.
            last = path[max(begins, size - len(mark.encode())) : size]
            if mark in self._tokenizer.decode(last):
                self._ended = path[:size]
                return size
        self._inside = path
        return None
