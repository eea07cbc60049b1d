"""One run of ``generate``: by this project, or by plain mlx_lm for ``--compare``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import mlx_lm
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafting.fixed import describe, names_of
from ..drafting.settings import USUAL, DraftSettings, Proposers
from ..engine.profile import NO_PROFILE, Profile
from ..engine.sampling import KeyedSampler
from ..engine.verify.rule import VerifyRule
from ..errors import Mode
from ..generation import stream_generate
from ..hardware.cpu import stock_modules
from ..kv_store import PromptCache
from ..loading import SpeculativeModel
from ..request import Progress
from ..responses import GenerationResponse


class CommonArguments(TypedDict):
    """The keyword arguments that our ``stream_generate`` and mlx_lm's have in common."""

    max_tokens: int
    prefill_step_size: int
    kv_bits: int | None
    kv_group_size: int
    quantized_kv_start: int
    sampler: KeyedSampler | None
    logits_processors: Sequence[LogitsProcessor]


@dataclass(frozen=True)
class Run:
    """A prompt and how to go on from it; see ``generation.stream_generate``.

    Attributes:
        prompt: token ids.
        common: arguments for mlx_lm too.
        settings: settings of the drafts; ``None``: the rule plans them.
        rule: the verify rule.
        stop: strings that end the text.
        prompt_cache: rows that the prompt begins with; mlx_lm does without.
        profile: measures the parts of our steps.
    """

    model: SpeculativeModel
    tokenizer: TokenizerWrapper
    prompt: list[int]
    common: CommonArguments
    settings: DraftSettings | Proposers | None
    rule: type[VerifyRule]
    stop: tuple[str, ...] = ()
    prompt_cache: PromptCache | None = None
    profile: Profile = NO_PROFILE

    @property
    def mode(self) -> Mode:
        """The mounted adapter's mode."""
        return self.model.mode

    @property
    def max_tokens(self) -> int:
        """The most tokens that were asked for."""
        return self.common["max_tokens"]

    @property
    def drafts(self) -> str:
        """The drafting in a few words."""
        guessing, head = self.model.guessing, self.model.head
        if self.settings is None or isinstance(self.settings, Proposers):
            own = "streams" if head is None else f"the {head.config.kind} head"
            names = [*[own] * (guessing is not None), *names_of(self.settings or USUAL)]
            listed = " and ".join([", ".join(names[:-1]), *names[-1:]]).removeprefix(" and ")
            return f"what is worth most, step by step, of {listed or 'nothing'}"
        described = describe(self.settings, guessing is not None)
        return described if head is None else f"{described}, by the {head.config.kind} head"

    @property
    def verify(self) -> str:
        """The verify rule's name."""
        return self.rule.name

    @property
    def seed(self) -> int | None:
        """Seed of the draws; ``None``: nothing is drawn."""
        sampler = self.common["sampler"]
        return None if sampler is None else sampler.seed

    @property
    def is_plain_text(self) -> bool:
        """True if the text is the one that plain decoding writes."""
        return self.verify in ("greedy", "keyed")

    def check(self) -> None:
        """Check that the model can do what is asked; nothing is generated."""
        self.responses()

    def responses(self, progress: Progress | None = None) -> Iterator[GenerationResponse]:
        """This project's responses; ``progress`` is told how far the prompt has been read."""
        return stream_generate(
            self.model,
            self.tokenizer,
            self.prompt,
            settings=self.settings,
            stop=self.stop,
            verify=self.rule,
            prompt_cache=self.prompt_cache,
            profile=self.profile,
            prompt_progress_callback=progress,
            **self.common,
        )

    def plain_responses(self) -> Iterator[PlainResponse]:
        """mlx_lm's responses on the same model and its own modules, broken off at a stop string.

        Run these to their end before the model does anything else.
        """
        text, common = "", self.common
        if common["sampler"] is not None:  # a fresh one, since it counts mlx_lm's calls
            common = common | {"sampler": replace(common["sampler"])}
        with stock_modules(self.model.model):
            for response in mlx_lm.stream_generate(
                self.model.model, self.tokenizer, self.prompt, **common
            ):
                text += response.text
                yield response
                if any(word in text for word in self.stop):
                    return
