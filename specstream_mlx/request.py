"""Requests, on which a generation depends besides its model, and steps, which answer them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from .drafting import Drafting
from .drafting.draft_model import check_draft_model
from .drafting.settings import DraftSettings, Proposers
from .engine.kv import NEVER_QUANTIZED, KVQuantization
from .engine.plan import DraftTree, Plan
from .engine.profile import NO_PROFILE, Profile
from .engine.sampling import normalized, sampling_of
from .engine.step import StepResult
from .engine.verify.by_name import VerifyName, find_rule
from .engine.verify.rule import VerifyRule
from .errors import UserError, shown
from .loading import SpeculativeModel
from .options import check_arguments
from .prompt_cache import PromptCache
from .prompts import check_prompt

Progress = Callable[[int, int], Any]
"""Called with the number of a prompt's tokens that have been read, and of all."""


@dataclass(frozen=True, eq=False)
class Step:
    """The tokens of one text that one target call committed.

    Attributes:
        tokens: the accepted drafts, then the correction or bonus token.
        plan: the plan of the step.
        tested_nodes: number of nodes that the target tested, root included, pruned ones not.
        seconds: time from the reading of the step before to the reading of this one; of the first
            step, from its enqueuing.
        result: the device arrays of the call.
        rows: for each token, the row of ``result.logits`` that predicts it.
    """

    tokens: list[int]
    plan: Plan
    tested_nodes: int
    seconds: float
    result: StepResult
    rows: list[int]

    @property
    def tree(self) -> DraftTree:
        """The tree that was drafted."""
        return self.plan.tree

    def log_probs(self) -> mx.array | None:
        """Return the target's log-probabilities (tokens, vocab), a row for each token.

        ``None``: the decoder returned no logits.
        """
        logits = self.result.logits
        if logits is None:
            return None
        return normalized(logits if logits.shape[0] == 1 else logits[mx.array(self.rows)])


@dataclass(frozen=True)
class Request:
    """A prompt and all else that a generation depends on besides its model.

    Attributes:
        prompt: token ids, at least one.
        drafting: settings of every step's drafts; or an object, made for this text, that plans its
            steps. ``None`` or ``Proposers``: the rule plans them, see ``drafting.rule``.
        max_tokens, end_tokens: the step that reaches ``max_tokens`` or writes one of ``end_tokens``
            is the last, and no further call is enqueued; without them decoding never ends.
        prefill_step_size: number of prompt tokens per pass.
        quantization: settings of the KV cache's quantization.
        sampler: draws the tokens: ``keyed_sampler(seed)``; or a ``Sampling`` or what mlx_lm's
            ``make_sampler`` returns, under a seed drawn from mlx's random state. ``None``: take the
            likeliest token.
        logits_processors: functions of (tokens, logits), as in mlx_lm; see ``NodeProcessors``.
        verify: the verify rule, by name or a class of one's own; ``None``: ``greedy`` where
            ``sampler`` takes the arg-max, else ``keyed``.
        prompt_cache: KV rows of earlier turns. The part of the prompt that they already hold is not
            read again; afterwards the cache holds this prompt too, and in lossless mode the text.
        progress: called before the prompt is read, after each pass, and when the first token is
            there; tokens that ``prompt_cache`` holds count as read.
        profile: adds up the seconds of each part of the generation. To do so it waits at the end of
            every part, which makes the generation slower and changes nothing else.
    """

    prompt: Sequence[int]
    drafting: DraftSettings | Proposers | Drafting | None = None
    max_tokens: int | None = None
    end_tokens: Collection[int] = ()
    prefill_step_size: int = 2048
    quantization: KVQuantization = NEVER_QUANTIZED
    sampler: Sampler | None = None
    logits_processors: Sequence[LogitsProcessor] | None = None
    verify: VerifyName | type[VerifyRule] | None = None
    prompt_cache: PromptCache | None = None
    progress: Progress | None = None
    profile: Profile = NO_PROFILE

    @property
    def rule(self) -> type[VerifyRule]:
        """The verify rule; where none was given, the sampler decides.

        Raises:
            UserError: the rule does not fit the sampler.
        """
        return find_rule(self.verify, self.sampler)

    def new_rule(self) -> VerifyRule:
        """Make the verify rule of a text."""
        return self.rule(self.sampler, self.logits_processors, self.prompt)

    def check(self, model: SpeculativeModel) -> None:
        """Check that a model can do what this request asks for.

        Raises:
            UserError: a value is out of range, or the model cannot do what is asked; names the
                first such value.
        """
        check_prompt(
            list(self.prompt),
            model.config,
            0 if self.prompt_cache is None else self.prompt_cache.unknown_rows,
        )
        check_arguments(
            max_tokens=-1 if self.max_tokens is None else self.max_tokens,
            prefill_step_size=self.prefill_step_size,
        )
        rule, vocab_size = self.rule, model.config["vocab_size"]
        sampling = sampling_of(self.sampler)
        if sampling is not None:
            sampling.check(vocab_size)
        self.quantization.check(model.model, model.config)
        known = DraftSettings | Proposers | Drafting
        if self.drafting is not None and not isinstance(self.drafting, known):
            raise UserError(f"settings is {shown(self.drafting)}, expected DraftSettings or None")
        if isinstance(self.drafting, DraftSettings | Proposers) and model.decides:
            check_draft_model(self.drafting.draft_model, model)
        if not isinstance(self.drafting, DraftSettings):
            if rule.name == "rejection":
                raise UserError(
                    "verify is 'rejection' and the drafts change from step to step, expected a "
                    "tree of fixed shape"
                )
            return
        streams = model.guessing
        if rule.draws_drafts:
            self.drafting.check_drawn(streams)
        self.drafting.check(vocab_size, streams)

    def check_side_by_side(self) -> None:
        """Check that this text's rows may lie beside those of others.

        Raises:
            UserError: they are quantized, or to be quantized.
        """
        cache = self.prompt_cache
        if self.quantization.bits is not None or (
            cache is not None and cache.quantized is not None
        ):
            raise UserError(
                "the KV cache of one of several texts is quantized, expected a KVCache for each "
                "layer"
            )
