"""One run of ``generate``: what it prints, and what a text is decoded from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_lm.generate import GenerationResponse as PlainResponse
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..loading import SpeculativeModel
    from ..request import Progress
    from ..responses import GenerationResponse


@dataclass(frozen=True)
class Run:
    """A generation, by MLX or by an exported package; ``hint`` is said before its text."""

    model: str
    adapter: str | None
    mode: str
    drafts: str
    verify: str
    seed: int | None
    max_tokens: int
    responses: "Callable[[Progress], Iterator[GenerationResponse]]"
    compare: Callable[[list[int]], Any] | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Decoding:
    """A prompt, and arguments of ``stream_generate``: those also of mlx_lm's, and our ``own``."""

    model: "SpeculativeModel"
    tokenizer: "TokenizerWrapper"
    prompt: list[int]
    common: dict[str, Any]
    own: dict[str, Any]

    def responses(self, progress: "Progress | None" = None) -> "Iterator[GenerationResponse]":
        """This project's responses; ``progress`` gets how far the prompt has been read."""
        from ..generation import stream_generate

        return stream_generate(
            self.model,
            self.tokenizer,
            self.prompt,
            prompt_progress_callback=progress,
            **self.common,
            **self.own,
        )

    def plain_responses(self) -> "Iterator[PlainResponse]":
        """mlx_lm's responses on the same model and its own modules, broken off at a stop string.

        Run these to their end before the model does anything else.
        """
        import mlx_lm

        from ..hardware.cpu import stock_modules

        text, common, model = "", self.common, self.model.model
        if common["sampler"] is not None:  # a fresh one, since it counts mlx_lm's calls
            common = common | {"sampler": replace(common["sampler"])}
        with stock_modules(model):
            for response in mlx_lm.stream_generate(model, self.tokenizer, self.prompt, **common):
                text += response.text
                yield response
                if any(word in text for word in self.own["stop"]):
                    return
