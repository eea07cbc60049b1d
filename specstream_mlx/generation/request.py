"""Requests: everything that a generation depends on, except its model."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.sample_utils import LogitsProcessor, Sampler

from ..drafting import Planner
from ..drafting.draft_model import check_draft_model
from ..drafting.settings import DraftSettings, Proposers
from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..engine.sampling import sampling_of
from ..engine.verify.by_name import VerifyName, find_rule
from ..engine.verify.rule import VerifyRule
from ..errors import UserError, shown
from ..loading.speculative_model import SpeculativeModel
from ..prompts import check_prompt
from .kv_store import PromptCache

Progress = Callable[[int, int], Any]
"""Called with the number of a prompt's tokens that have been read, and of all."""


@dataclass(frozen=True)
class Request:
    """A prompt and all else that a generation depends on; see ``stream_generate``.

    ``drafting``: settings of every step's drafts, or a ``Planner`` of this sequence's own; ``None``
    or ``Proposers``: the rule plans the steps. ``max_tokens`` and ``end_tokens`` end the sequence
    with the step that reaches or writes them. ``progress`` is called before prefill, after each
    pass and at the first token, with the tokens read so far, those of ``prompt_cache`` included.
    """

    prompt: Sequence[int]
    drafting: DraftSettings | Proposers | Planner | None = None
    max_tokens: int | None = None
    end_tokens: Collection[int] = ()
    prefill_step_size: int = 2048
    quantization: KVQuantization = NEVER_QUANTIZED
    sampler: Sampler | None = None
    logits_processors: Sequence[LogitsProcessor] | None = None
    verify: VerifyName | type[VerifyRule] | None = None
    prompt_cache: PromptCache | None = None
    progress: Progress | None = None

    @property
    def rule(self) -> type[VerifyRule]:
        return find_rule(self.verify, self.sampler)

    @property
    def quantizes(self) -> bool:
        cache = self.prompt_cache
        return self.quantization.bits is not None or bool(cache and cache.quantized)

    def check(self, model: SpeculativeModel) -> None:
        """Check that a model supports this request."""
        cache, vocab_size = self.prompt_cache, model.config["vocab_size"]
        check_prompt(list(self.prompt), model.config, cache.unknown_rows if cache else 0)
        rule, sampling = self.rule, sampling_of(self.sampler)
        if sampling is not None:
            sampling.check(vocab_size)
        self.quantization.check(model.model, model.config)
        drafting = self.drafting
        if drafting is not None and not isinstance(drafting, DraftSettings | Proposers | Planner):
            raise UserError(f"settings is {shown(drafting)}, expected DraftSettings or None")
        if isinstance(drafting, DraftSettings | Proposers) and model.decides:
            check_draft_model(drafting.draft_model, model)
        if isinstance(drafting, DraftSettings):
            if rule.draws_drafts:
                drafting.check_drawn(model.guessing)
            drafting.check(vocab_size, model.guessing)
        elif rule.name == "rejection":
            raise UserError(
                "verify is 'rejection' and the drafts change from step to step, expected a tree of "
                "fixed shape"
            )
