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
    """A generation, by MLX or by an exported package.

    Attributes:
        model, adapter: what the user calls them.
        mode: the adapter's.
        drafts: the drafting in a few words.
        verify: the verify rule's name.
        seed: seed of the draws; ``None``: nothing is drawn.
        max_tokens: the most tokens to generate.
        responses: generates; its argument gets how far the prompt has been read.
        compare: compares the tokens that were generated with those of another program.
        hint: what to say before the text.
    """

    model: str
    adapter: str | None
    mode: str
    drafts: str
    verify: str
    seed: int | None
    max_tokens: int
    responses: "Callable[[Progress], Iterator[GenerationResponse]]"
    compare: Callable[[list[int]], Any]
    hint: str | None = None


@dataclass(frozen=True)
class Decoding:
    """A prompt and how to go on from it, by this project and by plain mlx_lm.

    Attributes:
        prompt: token ids.
        common: arguments of ``stream_generate``, ours and mlx_lm's.
        own: further arguments of ours.
    """

    model: "SpeculativeModel"
    tokenizer: "TokenizerWrapper"
    prompt: list[int]
    common: dict[str, Any]
    own: dict[str, Any]

    @property
    def is_plain_text(self) -> bool:
        """Whether the text is the one that plain decoding writes."""
        return self.own["verify"].name in ("greedy", "keyed")

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

        text, common = "", self.common
        if common["sampler"] is not None:  # a fresh one, since it counts mlx_lm's calls
            common = common | {"sampler": replace(common["sampler"])}
        with stock_modules(self.model.model):
            for response in mlx_lm.stream_generate(
                self.model.model, self.tokenizer, self.prompt, **common
            ):
                text += response.text
                yield response
                if any(word in text for word in self.own["stop"]):
                    return
