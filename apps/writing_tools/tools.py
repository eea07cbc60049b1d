"""Writing tools: one resident base, one adapter per tool, applied in turn to one text."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import DraftSettings, SpeculativeModel, bundled, load, stream_generate
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


def available_tools() -> list[str]:
    """Names of the bundled adapters.

    Raises:
        UserError: this installation has no bundled model.
    """
    bundled.base_path()
    return bundled.adapter_names()


class WritingTools:
    """The resident base model; adapters come and go, base weights stay where they are."""

    def __init__(self) -> None:
        model, tokenizer = load(bundled.base_path())
        self._model: SpeculativeModel = model
        self._tokenizer: TokenizerWrapper = tokenizer

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
            UserError: there is no such tool.
        """
        start = time.perf_counter()
        self._model.swap_adapter(bundled.adapter_path(tool))
        adapter = self._model.adapter
        yield ToolStarted(tool, time.perf_counter() - start, adapter.nbytes)
        template = adapter.stream_config.prompt_template if adapter.stream_config else None
        prompt = chat_prompt(self._tokenizer, text, template)
        responses = stream_generate(
            self._model, self._tokenizer, prompt, max_tokens, settings=settings
        )
        for response in responses:
            if response.text:
                yield ToolText(tool, response.text)
        yield ToolFinished(
            tool, response.generation_tokens, response.generation_tps, response.accepted_length
        )
