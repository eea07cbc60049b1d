"""One request of ``generate``, answered by this project or by plain mlx_lm."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx_lm
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..autotune.tuning import TuningResult
from ..drafting.drafter import describe
from ..drafting.settings import DraftSettings
from ..engine.kv_quantization import KVQuantization
from ..engine.profile import NO_PROFILE, Profile
from ..engine.sampling import Sampling
from ..engine.verify.rules import VerifyName
from ..generation import GenerationResponse, stream_generate
from ..hardware.cpu.products import stock_modules
from ..loading import SpeculativeModel
from ..prompt_cache import PromptCache


@dataclass(frozen=True)
class Request:
    """A prompt and how to go on from it; see ``generation.stream_generate``.

    Attributes:
        kv_cache: the arguments of a quantized KV cache, which mlx_lm has under the same names.
        sampler: ``None`` takes the arg-max.
        tuned: where it came from, if drafts are to go on adapting.
        verify: the verify rule.
        prompt_cache: rows that the prompt begins with; mlx_lm does without.
        profile: told where the parts of our steps end.
    """

    model: SpeculativeModel
    tokenizer: TokenizerWrapper
    prompt: list[int]
    settings: DraftSettings
    max_tokens: int
    stop: tuple[str, ...]
    prefill_step_size: int
    kv_cache: dict[str, int | None]
    sampler: Sampling | None
    logits_processors: Sequence[LogitsProcessor]
    verify: VerifyName
    prompt_cache: PromptCache | None = None
    tuned: TuningResult | None = None
    profile: Profile = NO_PROFILE

    @property
    def drafts(self) -> str:
        """How it drafts, in a few words."""
        drafts = describe(self.settings, self.model.streams is not None)
        return f"{drafts}, as tuned" if self.tuned else drafts

    @property
    def quantization(self) -> KVQuantization:
        """Of the KV cache."""
        names = "kv_bits", "kv_group_size", "quantized_kv_start"
        return KVQuantization(*(self.kv_cache[name] for name in names))

    def responses(self) -> Iterator[GenerationResponse]:
        """This project's responses."""
        return stream_generate(
            self.model,
            self.tokenizer,
            self.prompt,
            self.max_tokens,
            settings=self.tuned.drafting() if self.tuned else self.settings,
            stop=self.stop,
            prefill_step_size=self.prefill_step_size,
            sampler=self.sampler,
            logits_processors=self.logits_processors,
            verify=self.verify,
            prompt_cache=self.prompt_cache,
            profile=self.profile,
            **self.kv_cache,
        )

    def plain_responses(self) -> Iterator[PlainResponse]:
        """mlx_lm's responses on the same model and its own modules, broken off at a stop string.

        Run these to their end before the model does anything else.
        """
        text = ""
        with stock_modules(self.model.model):
            for response in mlx_lm.stream_generate(
                self.model.model,
                self.tokenizer,
                self.prompt,
                self.max_tokens,
                prefill_step_size=self.prefill_step_size,
                sampler=self.sampler,
                logits_processors=self.logits_processors,
                **self.kv_cache,
            ):
                text += response.text
                yield response
                if any(word in text for word in self.stop):
                    return
