"""Writing tools: one resident base, one adapter per tool, applied in turn to one text."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specstream_mlx import DraftSettings, UserError, bundled, demonstration, load, stream_generate
from specstream_mlx.prompts import chat_prompt


@dataclass(frozen=True)
class ToolStarted:
    """An adapter has been mounted.

    Attributes:
        tool: its name.
        swap_seconds: time to read, check and mount it.
        adapter_bytes: bytes of its tensors.
    """

    tool: str
    swap_seconds: float
    adapter_bytes: int


@dataclass(frozen=True)
class ToolText:
    """The next piece of a tool's text."""

    tool: str
    text: str


@dataclass(frozen=True)
class ToolFinished:
    """A tool's text is complete.

    Attributes:
        tool: its name.
        generation_tokens: tokens written.
        generation_tps: tokens per second.
        accepted_length: tokens per target call.
    """

    tool: str
    generation_tokens: int
    generation_tps: float
    accepted_length: float


Event = ToolStarted | ToolText | ToolFinished


def choose_tools(names: Sequence[str] = ()) -> list[str]:
    """The named tools in the order of ``names``, or all; nothing is loaded.

    Raises:
        UserError: there is no such tool, or no base for it.
    """
    available = bundled.adapter_names()
    if not available:
        raise UserError(f"this installation has no bundled adapters ({bundled.ROOT / 'adapters'})")
    for name in names:
        if name not in available:
            raise UserError(f"there is no tool {name!r}, expected one of {', '.join(available)}")
    demonstration.base_path()
    return list(names) or available


def read_text(argument: str | None) -> str:
    """The user's text, from standard input where there is no argument.

    Raises:
        UserError: it is empty or not UTF-8, or standard input is a terminal.
    """
    if argument is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError("there is no text, expected an argument or a file as standard input")
        try:
            argument = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError:
            raise UserError("standard input is not UTF-8 text") from None
    text = argument.strip()
    if not text:
        raise UserError("the text is empty, expected an argument or standard input with some text")
    return text


class WritingTools:
    """The resident base model; adapters come and go, base weights stay where they are.

    Attributes:
        model: base and the adapter that is mounted.
        tokenizer: the base's.
    """

    def __init__(self) -> None:
        self.model, self.tokenizer = load(demonstration.base_path())

    def apply(
        self,
        text: str,
        tool: str,
        max_tokens: int = 256,
        settings: DraftSettings | None = None,
    ) -> Iterator[Event]:
        """Apply one tool to ``text``.

        Yields:
            ``ToolStarted``, then ``ToolText`` as the text comes, then ``ToolFinished``.

        Raises:
            UserError: there is no such tool, or the text is longer than the model's context;
                nothing has been yielded then.
        """
        start = time.perf_counter()
        self.model.swap_adapter(bundled.adapter_path(tool))
        swap_seconds = time.perf_counter() - start
        adapter = self.model.adapter
        assert adapter is not None
        prompt = chat_prompt(self.tokenizer, text, self.model.prompt_template)
        responses = stream_generate(
            self.model, self.tokenizer, prompt, max_tokens, settings=settings
        )
        yield ToolStarted(tool, swap_seconds, adapter.nbytes)
        for response in responses:
            if response.text:
                yield ToolText(tool, response.text)
        yield ToolFinished(
            tool, response.generation_tokens, response.generation_tps, response.accepted_length
        )


def summary(events: Sequence[Event]) -> dict[str, str | float]:
    """One JSON object for all events of one tool."""
    written = (event.text for event in events if isinstance(event, ToolText))
    values: dict[str, str | float] = {"text": "".join(written)}
    for event in events:
        if not isinstance(event, ToolText):
            values |= vars(event)
    return values
