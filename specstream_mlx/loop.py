"""One generation: the prompt, plain steps and tree steps, one ``Step`` per target call."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from .arguments import check_arguments
from .config import UserError, shown
from .drafting.drafter import Drafting, fixed_drafting
from .drafting.pace import auto_drafting
from .drafting.settings import DraftSettings
from .engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from .engine.plan import Plan
from .engine.profile import NO_PROFILE, Profile
from .engine.sampling import check_drawn, normalized, sampling_of
from .engine.step import Decoder, StepResult
from .engine.tree import DraftTree, root_only
from .engine.verify.by_name import VerifyName, find_rule
from .engine.verify.rule import VerifyRule
from .hardware import device
from .loading import SpeculativeModel
from .prompt_cache import PromptCache
from .prompts import check_prompt

Progress = Callable[[int, int], Any]
"""Told how many of a prompt's tokens have been read, and how many there are."""


class TreeDecoder(Protocol):
    """What the loop asks of a decoder of trees: ``Decoder``, or one of a model elsewhere.

    Attributes:
        caches: KV caches that may be quantized, one per layer; empty: they are not ours.
        profile: told where the parts of a step end.
    """

    caches: list[Any]
    profile: Profile

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,) without streams."""

    def step(self, plan: Plan, rule: VerifyRule) -> StepResult:
        """Verify a tree and let the accepted node's streams guess; see ``Decoder.step``."""

    def commit(self, path: Sequence[int], kept_path: Sequence[int]) -> None:
        """Keep the accepted rows of the last step; see ``Decoder.commit``."""


@dataclass
class Step:
    """What one target call committed.

    Attributes:
        tokens: the accepted drafts, then the correction or bonus token.
        plan: what was drafted, and where the streams ran.
        tested_nodes: tree nodes that the target tested, root included; pruned ones are not.
        seconds: from when the step before it was read until this one was; that of the first step,
            from when it was enqueued.
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
        """What was drafted."""
        return self.plan.tree

    def log_probs(self) -> mx.array | None:
        """(tokens, vocab) log-probabilities of the target before each token.

        ``None``: the decoder returned no logits.
        """
        logits = self.result.logits
        if logits is None:
            return None
        return normalized(logits if logits.shape[0] == 1 else logits[mx.array(self.rows)])


@dataclass(frozen=True)
class Request:
    """What to generate from, and how: all that a generation depends on besides its model.

    Attributes:
        prompt: token ids, at least one.
        drafting: how to draft in every step; or an object, made for this text, that plans its
            steps. ``None``: one that plans what is worth most, see ``drafting.rule``.
        max_tokens, end_tokens: the step that reaches ``max_tokens`` or writes one of ``end_tokens``
            is the last, and no further call is enqueued; without them decoding never ends.
        prefill_step_size: prompt tokens per pass.
        quantization: whether, when and how the KV cache is quantized.
        sampler: what draws tokens: ``keyed_sampler(seed)``; or a ``Sampling`` or what mlx_lm's
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
    drafting: DraftSettings | Drafting | None = None
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
        """The verify rule, chosen by the sampler where none was given.

        Raises:
            UserError: the rule does not fit the sampler.
        """
        return find_rule(self.verify, self.sampler)

    def check(self, model: SpeculativeModel) -> None:
        """Check that a model can do what this request asks for.

        Raises:
            UserError: a value is out of range, or the model cannot do it; names the first one.
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
        if self.drafting is not None and not isinstance(self.drafting, DraftSettings | Drafting):
            raise UserError(f"settings is {shown(self.drafting)}, expected DraftSettings or None")
        if not isinstance(self.drafting, DraftSettings):
            if rule.name == "rejection":
                raise UserError(
                    "verify is 'rejection' and the drafts change from step to step, expected a "
                    "tree of fixed shape"
                )
            return
        streams = model.streams and model.streams.config
        if rule.draws_drafts:
            self.drafting.check_drawn(streams)
        self.drafting.check(vocab_size, streams)


def decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    """Generate from a request, one ``Step`` per target call.

    From the second ``Step`` on, a step is handed out when the call behind it already runs.

    Args:
        model: base and adapter.
        request: the prompt and how to go on from it.

    Raises:
        UserError: the model cannot do what is asked; while decoding, another generation has taken
            the prompt cache, or the adapter was swapped.
    """
    request.check(model)
    return _decode(model, request)


def _decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    prompt, profile = request.prompt, request.profile
    profile.start()
    prompt_cache = PromptCache() if request.prompt_cache is None else request.prompt_cache
    generation = prompt_cache.begin(model, prompt, request.quantization)
    decoder = Decoder(model.model, model.streams, prompt_cache.caches, profile)
    prompt_cache.caches = decoder.caches
    unread = prompt[prompt_cache.reused : -1]
    progress, reused = request.progress or _nobody, prompt_cache.reused
    progress(reused, len(prompt))
    for read in prefill(decoder, unread, request.prefill_step_size, request.quantization):
        progress(reused + read, len(prompt))
    prompt_cache.extend(generation, unread)
    profile.border("prefill")
    # In shared mode generated rows have seen their streams, so no later prompt can use them.
    reusable, newest = model.mode == "lossless", prompt[-1]
    adapter, streams = model.adapter, model.streams
    drafting = _drafting(model, request)
    try:
        for number, step in enumerate(steps(decoder, request, drafting)):
            if not number:
                progress(len(prompt), len(prompt))
            if reusable:
                prompt_cache.extend(generation, [newest, *step.tokens[:-1]])
                newest = step.tokens[-1]
            yield step
            prompt_cache.check_current(generation)  # before the next step writes
            if model.adapter is not adapter or model.streams is not streams:
                raise UserError(
                    "the adapter was swapped during a generation, expected after its end"
                )
    finally:
        drafting.finish()


def _drafting(model: SpeculativeModel, request: Request) -> Drafting:
    """What plans the steps of one text."""
    settings, streams = request.drafting, model.streams and model.streams.config
    if settings is None:
        return auto_drafting(model, request.prompt, request.quantization)
    if isinstance(settings, DraftSettings):
        return fixed_drafting(settings, streams, request.prompt)
    return settings


def fill(
    prompt_cache: PromptCache,
    model: SpeculativeModel,
    prompt: Sequence[int],
    prefill_step_size: int = 2048,
    quantization: KVQuantization = NEVER_QUANTIZED,
    progress: Progress | None = None,
) -> None:
    """Read a prompt into ``prompt_cache``, so that it holds a KV row for each of its tokens.

    Args:
        prompt_cache: the cache to fill; tokens whose rows it already holds are not read again.
        model: base and adapter.
        prompt, prefill_step_size, quantization: see ``Request``.
        progress: called before the prompt is read and after each pass.

    Raises:
        UserError: the KV cache cannot be quantized so.
    """
    quantization.check(model.model, model.config)
    generation = prompt_cache.begin(model, prompt, quantization)
    decoder = Decoder(model.model, model.streams, prompt_cache.caches)
    prompt_cache.caches = decoder.caches
    progress, reused = progress or _nobody, prompt_cache.reused
    progress(reused, len(prompt))
    for start, part in ((reused, prompt[reused:-1]), (len(prompt) - 1, prompt[-1:])):
        for read in prefill(decoder, part, prefill_step_size, quantization):
            progress(start + read, len(prompt))
        prompt_cache.extend(generation, part)


def _nobody(read: int, total: int) -> None:
    """A ``Progress`` that nobody asked for."""


def prefill(
    decoder: TreeDecoder,
    tokens: Sequence[int],
    step_size: int,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> Iterator[int]:
    """Read tokens without streams, and yield after each pass how many have been read."""
    for start in range(0, len(tokens), step_size):
        with mx.stream(device.generation_stream):
            part = tokens[start : start + step_size]
            decoder.prefill(mx.array(part))
            quantization.apply(decoder.caches)
            mx.eval([cache.state for cache in decoder.caches])
            mx.clear_cache()
        yield start + len(part)


def steps(decoder: Decoder | TreeDecoder, request: Request, drafting: Drafting) -> Iterator[Step]:
    """The steps of one generation after its prompt.

    Args:
        decoder: it has read the prompt but for the last token.
        request: see ``decode``.
        drafting: plans the steps; plans that are pipelined need a ``Decoder``.
    """
    return _Loop(decoder, request, drafting).steps()


class _Loop:
    """Runs of plain steps and runs of tree steps, taking turns; see ``steps``."""

    def __init__(self, decoder: Decoder | TreeDecoder, request: Request, drafting: Drafting):
        self._decoder, self._quantization = decoder, request.quantization
        self._rule = request.rule(request.sampler, request.logits_processors, request.prompt)
        self._drafting = drafting
        self._root = request.prompt[-1]
        self._left, self._end_tokens = request.max_tokens, request.end_tokens
        self._ended, self._count = False, 0
        self._plan = self._drafting.first(self._root)
        self._last_read: float | None = None

    def steps(self) -> Iterator[Step]:
        """Yield every step up to the end, switching between plain steps and tree steps."""
        while not self._ended:
            yield from self.plain_steps() if self._plan.pipelined else self.tree_steps()

    def plain_steps(self) -> Iterator[Step]:
        """One token a step; the next call is enqueued before the last one is read.

        When drafting begins, one call is under way. It is used, and none is enqueued behind it.
        """
        start, plan = time.perf_counter(), self._plan
        result = self._enqueue_plain(mx.array([self._root]))
        while True:
            self._rule.commit(result.predictions)
            self._quantize()
            goes_on = self._plan.pipelined and self._left != 1
            following = self._enqueue_plain(result.predictions) if goes_on else None
            token = result.predictions.item()
            check_drawn([token])
            plan = replace(plan, tree=root_only(self._root))
            step = Step([token], plan, 1, self._seconds(start), result, [0])
            self._note(step)
            yield step
            if following is None:
                return
            if self._ended:
                self._decoder.uncommit(1)  # the call ahead
                return
            result = following

    def _enqueue_plain(self, token: mx.array) -> StepResult:
        self._decoder.profile.border("host")
        with mx.stream(device.generation_stream):
            result = self._decoder.next_token(token, self._rule)
        mx.async_eval(result.predictions)
        return result

    def _quantize(self) -> None:
        """Quantize the KV cache once it is long enough; between calls, as mlx_lm does."""
        with mx.stream(device.generation_stream):
            self._quantization.apply(self._decoder.caches)

    def tree_steps(self) -> Iterator[Step]:
        """Trees of drafts; a step is handed out when the next one has been enqueued.

        The first step of a text is an exception and handed out at once: on a CPU, enqueueing waits
        for most of the work, and the first token should not have to wait for a second step.
        """
        pending = None
        while True:
            start = time.perf_counter()
            plan = self._plan
            result = self._enqueue_tree(plan)
            if pending is not None:
                yield pending
            step = self._read(plan, result, start)
            self._note(step)
            if self._ended or self._plan.pipelined or self._count == 1:
                yield step
                if self._ended or self._plan.pipelined:
                    return
                pending = None
            else:
                pending = step

    def _enqueue_tree(self, plan: Plan) -> StepResult:
        self._decoder.profile.border("host")
        with mx.stream(device.generation_stream):
            result = self._decoder.step(plan, self._rule)
        mx.async_eval(*result.arrays())
        return result

    def _read(self, plan: Plan, result: StepResult, start: float) -> Step:
        """Wait for the call and commit the accepted rows."""
        mx.eval(*result.arrays())
        tested, path, kept_path = result.accepted(plan.tree)
        profile = self._decoder.profile
        profile.border("host")
        with mx.stream(device.generation_stream):
            tokens = [*plan.tree.tokens[path[1:]].tolist(), result.prediction()]
            check_drawn(tokens)
            self._decoder.commit(path, kept_path)
            self._rule.commit(tokens)
            self._quantize()
            profile.border("compaction", [(c.keys, c.values) for c in self._decoder.caches])
        return Step(tokens, plan, tested, self._seconds(start), result, kept_path)

    def _seconds(self, start: float) -> float:
        """Seconds since the last step was read; of the first step, since ``start``."""
        now, last = time.perf_counter(), self._last_read
        self._last_read = now
        return now - (start if last is None else last)

    def _note(self, step: Step) -> None:
        """See whether the text ends, and if not, plan the next step."""
        self._root = step.tokens[-1]
        if self._left is not None:
            self._left -= len(step.tokens)
        over = self._left is not None and self._left <= 0
        self._ended = over or any(token in self._end_tokens for token in step.tokens)
        timed = self._count and self._decoder.profile is NO_PROFILE  # which takes its own time
        seconds = step.seconds if timed else None
        self._drafting.accept(step.plan, step.tokens, seconds)
        if not self._ended:
            plan = self._drafting.plan(self._root, step.result.guesses())
            caches = self._decoder.caches
            tree = self._quantization.fitting(plan.tree, caches[0]) if caches else plan.tree
            self._plan = plan if tree is plan.tree else replace(plan, tree=tree)
        self._count += 1
        if self._count % 64 == 0:
            mx.clear_cache()
