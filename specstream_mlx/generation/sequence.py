"""A sequence: its prompt is read in chunks, then it takes the steps that calls bring it."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from ..drafting import Planner
from ..drafting.batch_costs import BatchCosts
from ..drafting.fixed import fixed_planner
from ..drafting.rule import rule_planner
from ..drafting.settings import USUAL, DraftSettings
from ..engine.guess import NO_GUESSES, normalized
from ..engine.kv import make_caches
from ..engine.plan import DraftTree, Plan, Verified
from ..engine.step import Decoder, StepResult
from ..engine.verify.rule import VerifyRule
from ..errors import UserError
from ..hardware import running
from ..loading.speculative_model import SpeculativeModel
from .broadcast import Broadcast
from .request import Request


@dataclass(frozen=True, eq=False)
class Step:
    """The tokens of one sequence that one target call committed: accepted drafts, then one more."""

    tokens: list[int]
    plan: Plan
    tested_nodes: int
    seconds: float  # since the step before was read; of the first: since enqueuing
    result: StepResult
    rows: list[int]  # of ``result.logits``, which predict each token
    kept: int  # the first tokens, up to the end of the text
    finish_reason: str | None  # ``stop`` or ``length`` if the text ends with the last of these
    planner: Planner | None  # on rank 0, that of the sequence

    @property
    def tree(self) -> DraftTree:
        return self.plan.tree

    def log_probs(self) -> mx.array | None:
        """Return log-probabilities (tokens, vocab); ``None``: the decoder returned no logits."""
        logits = self.result.logits
        if logits is None:
            return None
        return normalized(logits if logits.shape[0] == 1 else logits[mx.array(self.rows)])


class TokenSequence:
    """One sequence: its prompt is read in chunks, but for the last token; then it takes steps.

    A ``decoder`` of a model elsewhere has ``prefill``, ``step``, ``commit`` and ``caches``, and
    takes no plain steps; with it the request's ``drafting`` is a planner. ``reused`` tokens are
    read already.
    """

    rule: VerifyRule
    plan: Plan

    def __init__(
        self, model: SpeculativeModel | None, request: Request, decoder: Any = None, reused: int = 0
    ):
        self.model, self.request, self._cache = model, request, request.prompt_cache
        self._mounted = _mounted(model)
        self._unrecorded: list[int] = []  # tokens of rows that the prompt cache does not know yet
        # No later prompt can use rows that have seen streams.
        self._reusable = model is not None and model.mode == "lossless"
        if decoder is None:
            assert model is not None
            if self._cache is None:
                caches = make_caches(model.model, model.config)
            else:
                self._generation = self._cache.begin(model, request.prompt, request.quantization)
                caches, reused = self._cache.caches, self._cache.reused
            share = model.ranks.share if model.ranks else None
            more: dict[str, Any] = {"head": model.head, "compiled": model.compiled}
            decoder = Decoder(model.model, model.streams, caches, share=share, **more)
            if self._cache is not None:
                self._cache.caches = decoder.caches
        self.decoder = decoder
        self._tokens_read = reused
        self._progress(reused)
        self.root, self._left = request.prompt[-1], request.max_tokens
        self.ended, self.count = False, 0
        self.planner: Planner | None = None
        self._broadcast: Broadcast | None = None
        self._guesses = NO_GUESSES

    # The prompt ---------------------------------------------------------------------------------

    @property
    def is_read(self) -> bool:
        return self._tokens_read == len(self.request.prompt) - 1

    def read(self) -> None:
        """Read the next chunk of the prompt."""
        request, caches, start = self.request, self.decoder.caches, self._tokens_read
        end = min(start + request.prefill_step_size, len(request.prompt) - 1)
        chunk = list(request.prompt[start:end])
        with mx.stream(running.generation_stream):
            self.decoder.prefill(mx.array(chunk))
            request.quantization.apply(caches)
            mx.eval([cache.state for cache in caches])
            mx.clear_cache()
        if self._cache is not None:
            self._cache.extend(self._generation, chunk)
        self._tokens_read = end
        self._progress(end)

    def read_all(self) -> None:
        while not self.is_read:
            self.read()

    def _progress(self, read: int) -> None:
        if self.request.progress is not None:
            self.request.progress(read, len(self.request.prompt))

    # Steps --------------------------------------------------------------------------------------

    def start(self, broadcast: Broadcast | None) -> None:
        """Plan the first step."""
        request, model = self.request, self.model
        self.rule = request.rule(request.sampler, request.logits_processors, request.prompt)
        self._broadcast = broadcast
        if model is None or model.decides:
            self.planner = self._new_planner()
        self.plan = self._planned(lambda planner: planner.first(self.root))

    def _new_planner(self) -> Planner:
        model, prompt, drafting = self.model, self.request.prompt, self.request.drafting
        if isinstance(drafting, Planner):
            return drafting
        assert model is not None
        if isinstance(drafting, DraftSettings):
            return fixed_planner(drafting, model, prompt, self.rule)
        return rule_planner(model, prompt, self.request.quantization, drafting or USUAL, self.rule)

    def _planned(self, make: Callable[[Planner], Plan]) -> Plan:
        """Make a plan where there is a planner, on rank 0, and broadcast it."""
        plan = None if self.planner is None else make(self.planner)
        if self._broadcast is not None:
            plan = self._broadcast.plan(plan)
        assert plan is not None
        return plan

    @property
    def goes_on(self) -> bool:
        """True if another plain step follows, as far as is known before this one is read."""
        return self.plan.pipelined and self._left != 1 and not self.ended

    def share_pass(self, count: int) -> BatchCosts | None:
        return None if self.planner is None else self.planner.share_pass(count)

    def end_of(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """Return how many of the newest tokens are the text's, and why it ends with the last."""
        for count, token in enumerate(tokens[: self._left], start=1):
            if token in self.request.end_tokens:
                return count, "stop"
        if self._left is not None and len(tokens) >= self._left:
            return self._left, "length"
        return len(tokens), None

    def take(self, step: Step, seconds: float | None) -> None:
        """Take in the newest step and its time; unless it ends the sequence, plan the next one."""
        if self._cache is not None and self._reusable:
            self._unrecorded += [self.root, *step.tokens[:-1]]
        self.root = step.tokens[-1]
        if self._left is not None:
            self._left -= len(step.tokens)
        self.ended = step.finish_reason is not None
        if self.planner is not None:
            self.planner.accept(step.plan, step.tokens, seconds if self.count else None)
        self.count += 1
        if self.ended:
            return
        guesses = step.result.guesses()
        if self.model is not None and self.model.head_watch is not None:
            self.model.head_watch.judge(self._guesses, step.tokens)
            self._guesses = guesses
        verified = Verified(step.tree, step.result.predictions_of(step.tree))
        plan = self._planned(lambda planner: planner.plan(self.root, guesses, verified))
        if self.decoder.caches:
            tree = self.request.quantization.fitting(plan.tree, self.decoder.caches[0])
            plan = plan if tree is plan.tree else replace(plan, tree=tree)
        self.plan = plan

    # KV rows ------------------------------------------------------------------------------------

    def record(self, caches: list[Any]) -> None:
        """Record the rows so far in the prompt cache, if they are written into its own caches."""
        if self.count == 1:
            self._progress(len(self.request.prompt))
        if self._cache is not None and caches is self._cache.caches:
            self._cache.extend(self._generation, self._unrecorded)
            self._unrecorded = []

    def finish(self, caches_of: Callable[[], list[Any]]) -> None:
        """Hand the rows of ``caches_of()`` to the prompt cache."""
        if self._cache is not None and self._unrecorded:
            self._cache.caches = caches_of()
            self._cache.extend(self._generation, self._unrecorded)
        if self.planner is not None:
            self.planner.finish()

    def check_current(self) -> None:
        if self._cache is not None:
            self._cache.check_current(self._generation)
        if any(map(operator.is_not, _mounted(self.model), self._mounted)):
            raise UserError("the adapter was swapped during a generation, expected after its end")


def _mounted(model: SpeculativeModel | None) -> tuple[Any, ...]:
    return () if model is None else (model.adapter, model.streams, model.head)


Steps = list[tuple[TokenSequence, Step]]
"""The steps of one target call, one for each sequence that was part of it."""
