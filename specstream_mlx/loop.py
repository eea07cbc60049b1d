"""Generations: prompts, plain steps and tree steps, one ``Step`` per text and target call.

One loop decodes texts side by side, which join and leave between steps; a generation by itself is a
loop of one.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from .broadcast import Broadcast
from .drafting import Drafting, Sharing
from .drafting.batch_cost import BatchCosts
from .drafting.draft_model import check_draft_model
from .drafting.fixed import fixed_drafting
from .drafting.rule import auto_drafting
from .drafting.settings import USUAL, DraftSettings, Proposers
from .engine.draft_head import HeadWatch
from .engine.guesses import NO_GUESSES
from .engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from .engine.plan import Plan
from .engine.profile import NO_PROFILE, Profile
from .engine.sampling import check_drawn, normalized, sampling_of
from .engine.step import Decoder, StepResult
from .engine.tree import DraftTree, Verified, root_only
from .engine.verify.by_name import VerifyName, find_rule
from .engine.verify.rule import VerifyRule
from .errors import UserError, shown
from .hardware import device
from .loading import SpeculativeModel
from .models.architectures import architecture_of, layer_windows
from .options import check_arguments
from .prompt_cache import PromptCache
from .prompts import check_prompt

_AWAY = 0.2
"""Share of a step's time that others may have had the thread, if it is to count as the step's."""

Progress = Callable[[int, int], Any]
"""Called with the number of a prompt's tokens that have been read, and of all."""


class TreeDecoder(Protocol):
    """A decoder of trees, as the loop calls it: ``Decoder``, or one of a model elsewhere.

    Attributes:
        caches: KV caches that may be quantized, one per layer; empty if rows are kept elsewhere.
        profile: measures the parts of a step.
    """

    caches: list[Any]
    profile: Profile

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,) without streams."""

    def step(self, plans: Sequence[Plan], rules: Sequence[VerifyRule]) -> list[StepResult]:
        """Verify trees and let the accepted nodes' streams guess; see ``Decoder.step``."""

    def commit(self, paths: Sequence[Sequence[int]], kept_paths: Sequence[Sequence[int]]) -> None:
        """Keep the accepted rows of the last step; see ``Decoder.commit``."""


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


def decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    """Generate from a request, one ``Step`` per target call.

    From the second ``Step`` on, a step is yielded when the call after it already runs.

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
    together = Together(model)
    together.join(request)
    for [(_, step)] in together.steps():
        yield step


class Text:
    """One generation in the loop.

    Args:
        request: the prompt and how to go on from it.
        drafting: the object that plans the steps; ``None``: rank 0 has it.
        rule: the verify rule; ``None``: a new one.
        watch: is told of the guesses of a draft head; ``None``: none is mounted.
        broadcast: the plans of rank 0.

    Attributes:
        request, rule: see above.
        root: the newest token.
        plan: the plan of the next step.
        ended: whether the last step was read.
        count: number of steps so far.
    """

    def __init__(
        self,
        request: Request,
        drafting: Drafting | None,
        rule: VerifyRule | None = None,
        watch: HeadWatch | None = None,
        broadcast: Broadcast = Broadcast(),  # noqa: B008
    ):
        self.request, self._drafting, self._broadcast = request, drafting, broadcast
        self._watch, self._guesses = watch, NO_GUESSES
        self.rule = rule or request.new_rule()
        self.root, self._left = request.prompt[-1], request.max_tokens
        self.ended, self.count = False, 0
        self.plan = broadcast.plan(lambda: self._planner.first(self.root))

    @property
    def goes_on(self) -> bool:
        """True if another plain step follows, as far as is known before this one is read."""
        return self.plan.pipelined and self._left != 1 and not self.ended

    @property
    def _planner(self) -> Drafting:
        """The drafting, where there is one: on rank 0."""
        assert self._drafting is not None
        return self._drafting

    def beside(self, texts: int) -> BatchCosts | None:
        """Tell the drafting of how many texts the next pass is; see ``Sharing``."""
        return self._drafting.beside(texts) if isinstance(self._drafting, Sharing) else None

    def plan_next(self, step: Step, seconds: float | None, cache: Any) -> None:
        """Take in a step; unless it ends the text, plan the next one.

        Args:
            step: the newest step of this text.
            seconds: time that it took; ``None``: unknown.
            cache: any layer's KV cache that may be quantized, or ``None``.
        """
        self.root = step.tokens[-1]
        if self._left is not None:
            self._left -= len(step.tokens)
        over = self._left is not None and self._left <= 0
        ends = self.request.end_tokens
        self.ended = over or any(token in ends for token in step.tokens)
        if self._drafting is not None:
            self._drafting.accept(step.plan, step.tokens, seconds if self.count else None)
        self.count += 1
        if self.ended:
            return
        result, guesses = step.result, step.result.guesses()
        if self._watch is not None:
            self._watch.judge(self._guesses, step.tokens)
            self._guesses = guesses
        verified = Verified(step.tree, result.predictions_of(step.tree))
        plan = self._broadcast.plan(lambda: self._planner.plan(self.root, guesses, verified))
        if cache is not None:
            tree = self.request.quantization.fitting(plan.tree, cache)
            plan = plan if tree is plan.tree else replace(plan, tree=tree)
        self.plan = plan

    def finish(self) -> None:
        """Keep what is to outlive the text; see ``Drafting``."""
        if self._drafting is not None:
            self._drafting.finish()


Steps = list[tuple[Text, Step]]
"""The steps of one target call, one for each text that was part of it."""


class Together:
    """Texts that are decoded side by side: they join and leave between steps.

    Each is token for token what it would be alone.

    Args:
        model: base and adapter.
    """

    def __init__(self, model: SpeculativeModel):
        self._model = model
        self._loop: _Loop | None = None
        self._rows: dict[Text, Prefill] = {}
        self._broadcast = Broadcast(model.ranks)

    def __len__(self) -> int:
        """Count the texts that go on."""
        return len(self._rows)

    def join(self, request: Request, model: SpeculativeModel | None = None) -> Text:
        """Read a prompt; its text goes on beside the others from the next call on.

        Args:
            request: a request that has been checked.
            model: the base with another adapter, see ``share_a_pass``; ``None``: the same one.

        Raises:
            UserError: the prompt cache cannot be used; or there are other texts, beside which the
                model or its KV cache cannot be run.
        """
        return self.take(Prefill(model or self._model, request))

    def take(self, prefill: "Prefill") -> Text:
        """Let a text go on as ``join`` does, whose prompt is read already, or is read here."""
        model, request = prefill.model, prefill.request
        if self._rows:
            check_side_by_side(model)
            for one in (request, *(text.request for text in self._rows)):
                one.check_side_by_side()
        for _ in prefill:
            pass
        request.profile.border("prefill")
        rule = request.new_rule()
        drafting = _drafting(model, request, rule) if model.decides else None
        text = Text(request, drafting, rule, model.head_watch, self._broadcast)
        if self._loop is None:
            self._loop = _Loop(prefill.decoder, text)
        else:
            self._loop.join(text, prefill.decoder)
        self._rows[text] = prefill
        return text

    def leave(self, text: Text) -> None:
        """Stop a text early; the call under way is the last one that it is part of."""
        text.ended = True
        self._let_go(text)

    def steps(self) -> Iterator[Steps]:
        """Decode until all texts have ended; texts may join or leave after each yield.

        Raises:
            UserError: see ``decode``.
        """
        loop = self._loop
        if loop is None:
            return
        try:
            for steps in loop.steps():
                tokens = [token for _, step in steps for token in step.tokens]
                steps = [(text, step) for text, step in steps if text in self._rows]
                for text, step in steps:
                    self._rows[text].note(step)
                    if text.ended:
                        self._let_go(text)
                    else:
                        self._rows[text].record(loop.caches)
                yield steps
                self._check_current()  # before the next step writes
                if not self._broadcast.goes_on(tokens):
                    return
        finally:
            self._broadcast.over()
            for text in list(self._rows):
                self._let_go(text)

    def _let_go(self, text: Text) -> None:
        rows, loop = self._rows.pop(text), self._loop
        if loop is not None:
            rows.keep(lambda: loop.caches_of(text))
        text.finish()

    def _check_current(self) -> None:
        for rows in self._rows.values():
            rows.check_current()


class Prefill:
    """A prompt that is read in chunks, but for its last token; then the KV rows of its text.

    An iterator: each ``next`` reads a chunk, and returns how many of the prompt's tokens are there.

    Attributes:
        model, request: of the text; the request has been checked.
        decoder: reads the prompt.
    """

    def __init__(self, model: SpeculativeModel, request: Request):
        request.profile.start()
        self.model, self.request, given = model, request, request.prompt_cache
        self._adapter, self._streams, self._head = model.adapter, model.streams, model.head
        self._cache = PromptCache() if given is None else given
        self._generation = self._cache.begin(model, request.prompt, request.quantization)
        self._newest, self._progress = request.prompt[-1], request.progress
        self._behind: list[int] = []  # tokens of rows that the prompt cache does not know of yet
        ranks = model.ranks
        self.decoder = Decoder(
            model.model,
            model.streams,
            self._cache.caches,
            request.profile,
            share=None if ranks is None else ranks.share,
            head=model.head,
        )
        self._cache.caches = self.decoder.caches
        self._chunks = self._read()

    def __iter__(self) -> Iterator[int]:
        return self._chunks

    def _read(self) -> Iterator[int]:
        request, reused = self.request, self._cache.reused
        progress, total = request.progress or _nobody, len(request.prompt)
        unread = request.prompt[reused:-1]
        progress(reused, total)
        for read in prefill(self.decoder, unread, request.prefill_step_size, request.quantization):
            progress(reused + read, total)
            yield reused + read
        self._cache.extend(self._generation, unread)

    def note(self, step: Step) -> None:
        """Take in a step of the text."""
        if self._progress is not None:
            total = len(self.request.prompt)
            self._progress(total, total)  # the first token is there
            self._progress = None
        if self.model.mode == "lossless":  # no later prompt can use rows that have seen streams
            self._behind += [self._newest, *step.tokens[:-1]]
        self._newest = step.tokens[-1]

    def record(self, caches: list[Any]) -> None:
        """Tell the prompt cache of the rows so far, if they are written into its own caches.

        Rows of several texts lie in common caches, and are copied to it in the end.

        Args:
            caches: the caches that are written to.
        """
        if caches is self._cache.caches:
            self._cache.extend(self._generation, self._behind)
            self._behind = []
        elif self.request.prompt_cache is None:
            self._cache.caches = []  # nobody will ask for them

    def keep(self, caches_of: Callable[[], list[Any]]) -> None:
        """Hand the rows to the prompt cache at the end.

        Args:
            caches_of: function that returns the text's KV caches, one per layer.
        """
        if self._behind and self.request.prompt_cache is not None:
            self._cache.caches = caches_of()
            self.record(self._cache.caches)

    def check_current(self) -> None:
        """Check that nobody else has taken the prompt cache over, or swapped the adapter."""
        self._cache.check_current(self._generation)
        model = self.model
        mounted = model.adapter, model.streams, model.head
        before = self._adapter, self._streams, self._head
        if any(now is not then for now, then in zip(mounted, before, strict=True)):
            raise UserError("the adapter was swapped during a generation, expected after its end")


def check_side_by_side(model: SpeculativeModel) -> None:
    """Check that several texts may go through a model at once.

    Raises:
        UserError: it has sliding windows, learned positions, or an attention that takes no mask per
            sequence.
    """
    name = model.config["model_type"]
    architecture = architecture_of(name)
    reason = None
    if architecture.positions != "rope":
        reason = "its positions are learned"
    elif architecture.array_masks:
        reason = "its attention is not known to take a mask per sequence"
    elif any(window is not None for window in layer_windows(model.config, model.model)):
        reason = "it has sliding windows"
    if reason:
        raise UserError(
            f"model_type is {name!r}, which cannot decode in batches: {reason}; "
            "expected one prompt at a time"
        )


def share_a_pass(first: SpeculativeModel, second: SpeculativeModel) -> bool:
    """Whether texts of two models can be decoded side by side: one base, adapters that fit."""
    same_head = first.head is second.head
    return first is second or (same_head and first.layout.fits(second.layout))


def _drafting(model: SpeculativeModel, request: Request, rule: VerifyRule) -> Drafting:
    """Make the object that plans the steps of one text."""
    settings = request.drafting
    if settings is None or isinstance(settings, Proposers):
        proposers = settings or USUAL
        return auto_drafting(model, request.prompt, request.quantization, proposers, rule)
    if isinstance(settings, DraftSettings):
        return fixed_drafting(settings, model, request.prompt, rule)
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
    request = Request(
        prompt,
        prefill_step_size=prefill_step_size,
        quantization=quantization,
        prompt_cache=prompt_cache,
    )
    progress, total = progress or _nobody, len(prompt)
    reading = Prefill(model, request)
    progress(prompt_cache.reused, total)
    for read in reading:
        progress(read, total)
    for _ in Prefill(model, replace(request, prompt=[*prompt, prompt[-1]])):  # the last token
        progress(total, total)


def _nobody(read: int, total: int) -> None:
    """Show no progress; a ``Progress``."""


def prefill(
    decoder: TreeDecoder,
    tokens: Sequence[int],
    step_size: int,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> Iterator[int]:
    """Read tokens without streams; yields after each pass the number read so far."""
    for start in range(0, len(tokens), step_size):
        with mx.stream(device.generation_stream):
            part = tokens[start : start + step_size]
            decoder.prefill(mx.array(list(part)))
            quantization.apply(decoder.caches)
            mx.eval([cache.state for cache in decoder.caches])
            mx.clear_cache()
        yield start + len(part)


def steps(decoder: Decoder | TreeDecoder, request: Request, drafting: Drafting) -> Iterator[Step]:
    """Yield the steps of one generation after its prompt.

    Args:
        decoder: a decoder that has read the prompt but for the last token.
        request: see ``decode``.
        drafting: the object that plans the steps; pipelined plans need a ``Decoder``.
    """
    for [(_, step)] in _Loop(decoder, Text(request, drafting)).steps():
        yield step


class _Loop:
    """The loop over texts side by side: runs of plain steps and runs of tree steps in turns."""

    def __init__(self, decoder: Decoder | TreeDecoder, text: Text):
        self._decoder, self._texts = decoder, [text]
        self._joining: list[tuple[Text, Decoder]] = []
        self._count = 0
        self._last_read: float | None = None
        self._away = 0.0  # seconds since then in which others had the thread
        self._on_time = False  # whether the last step's time is its own

    def join(self, text: Text, decoder: Decoder) -> None:
        """Let a text go on beside the others from the next call on."""
        self._joining.append((text, decoder))

    @property
    def _own(self) -> Decoder:
        """The decoder, where it must be ours: of several texts, and for plain steps."""
        assert isinstance(self._decoder, Decoder)
        return self._decoder

    @property
    def caches(self) -> list[Any]:
        """KV caches of all layers; if there is one text, they are its own."""
        return self._decoder.caches

    def caches_of(self, text: Text) -> list[Any]:
        """Return the KV caches of a text that was part of the last call, one per layer."""
        with mx.stream(device.generation_stream):
            caches: list[Any] = self._own.rows_of(self._texts.index(text))
        if caches is not self.caches:
            mx.eval([cache.state for cache in caches])  # else they would keep those of all texts
        return caches

    def steps(self) -> Iterator[Steps]:
        """Yield every step up to the end, switching between plain steps and tree steps."""
        while self._seated():
            plain = all(text.plan.pipelined for text in self._texts)
            for steps in self.plain_steps() if plain else self.tree_steps():
                left = time.perf_counter()
                yield steps
                self._away += time.perf_counter() - left

    def _seated(self) -> bool:
        """Drop texts that have ended and take in those that join; returns whether any is left."""
        going = [number for number, text in enumerate(self._texts) if not text.ended]
        joining = [(text, decoder) for text, decoder in self._joining if not text.ended]
        self._joining = []
        if (joining or len(going) < len(self._texts)) and (joining or going):
            with mx.stream(device.generation_stream):
                self._own.seat(going, [decoder for _, decoder in joining])
            self._last_read = None  # the next call's time includes the change
        self._texts = [self._texts[number] for number in going] + [text for text, _ in joining]
        return bool(self._texts)

    def plain_steps(self) -> Iterator[Steps]:
        """Yield steps of one token; the next call is enqueued before the last one is read."""
        start, texts = time.perf_counter(), self._texts
        plans = [text.plan for text in texts]
        results = self._enqueue_plain([mx.array([text.root]) for text in texts])
        while True:
            with mx.stream(device.generation_stream):
                for text, result in zip(texts, results, strict=True):
                    text.rule.commit(result.predictions)
            self._quantize()
            following = None
            if all(text.goes_on for text in texts) and not self._joining:
                following = self._enqueue_plain([result.predictions for result in results])
            seconds, steps = None, []
            for text, plan, result in zip(texts, plans, results, strict=True):
                token = int(np.array(result.predictions).item())
                seconds = self._seconds(start) if seconds is None else seconds
                if text.ended:  # while the call was under way
                    continue
                check_drawn([token])
                plan = replace(plan, tree=root_only(text.root))
                steps.append((text, Step([token], plan, 1, seconds, result, [0])))
            self._note(steps)
            yield steps
            if following is None:
                return
            if all(text.ended for text in texts):
                self._own.uncommit(1)  # the call ahead
                return
            results = following

    def _enqueue_plain(self, roots: list[mx.array]) -> list[StepResult]:
        """Enqueue a call of one token a text, each behind a root of its own, (1,)."""
        self._decoder.profile.border("host")
        with mx.stream(device.generation_stream):  # what comes from another stream is waited for
            rules = [text.rule for text in self._texts]
            results = self._own.next_token(mx.stack(roots), rules)
        mx.async_eval(*[result.predictions for result in results])
        return results

    def _quantize(self) -> None:
        """Quantize the KV cache once it is long enough; between calls, as mlx_lm does."""
        with mx.stream(device.generation_stream):
            for text in self._texts:
                text.request.quantization.apply(self._decoder.caches)

    def tree_steps(self) -> Iterator[Steps]:
        """Yield steps of trees; a step is yielded when the next one has been enqueued."""
        pending, texts = None, self._texts
        while True:
            start = time.perf_counter()
            plans = [text.plan for text in texts]
            results = self._enqueue_trees(plans)
            if pending is not None:
                yield pending
            steps = self._read(plans, results, start)
            self._note(steps)
            over = any(text.ended for text in texts) or bool(self._joining)
            over = over or all(text.plan.pipelined for text in texts)
            # The first token does not wait for a second call: on a CPU enqueueing does most of it.
            if over or any(text.count == 1 for text in texts):
                yield steps
                if over:
                    return
                pending = None
            else:
                pending = steps

    def _enqueue_trees(self, plans: Sequence[Plan]) -> list[StepResult]:
        self._decoder.profile.border("host")
        with mx.stream(device.generation_stream):
            results = self._decoder.step(plans, [text.rule for text in self._texts])
        mx.async_eval(*_arrays(results))
        return results

    def _read(self, plans: Sequence[Plan], results: Sequence[StepResult], start: float) -> Steps:
        """Wait for the call and commit the accepted rows."""
        mx.eval(*_arrays(results))
        accepted = [result.accepted(plan.tree) for plan, result in zip(plans, results, strict=True)]
        profile = self._decoder.profile
        profile.border("host")
        written = []
        with mx.stream(device.generation_stream):
            for plan, result, (_, path, _) in zip(plans, results, accepted, strict=True):
                written.append([*plan.tree.tokens[path[1:]].tolist(), result.prediction()])
                check_drawn(written[-1])
            _, paths, kept_paths = zip(*accepted, strict=True)
            self._decoder.commit(paths, kept_paths)
            for text, tokens in zip(self._texts, written, strict=True):
                text.rule.commit(tokens)
            self._quantize()
            profile.border("compaction", [(c.keys, c.values) for c in self._decoder.caches])
        seconds = self._seconds(start)
        return [
            (text, Step(tokens, plan, tested, seconds, result, kept_path))
            for text, tokens, plan, result, (tested, _, kept_path) in zip(
                self._texts, written, plans, results, accepted, strict=True
            )
        ]

    def _seconds(self, start: float) -> float:
        """Return the seconds since the last step was read; for the first step, since ``start``."""
        now, last = time.perf_counter(), self._last_read
        seconds = now - (start if last is None else last)
        self._on_time = last is not None and self._away < _AWAY * seconds
        self._last_read, self._away = now, 0.0
        return seconds

    def _note(self, steps: Steps) -> None:
        """Plan the texts' next steps."""
        # A profile takes its own time, and a call of several texts tells nothing of one of them.
        timed = self._decoder.profile is NO_PROFILE and len(self._texts) == 1
        cache = self._decoder.caches[0] if self._decoder.caches else None
        self._note_costs(steps)
        for text, step in steps:
            if text.ended:  # it was left while the call was under way
                continue
            text.plan_next(step, step.seconds if timed else None, cache)
        self._count += 1
        if self._count % 64 == 0:
            mx.clear_cache()

    def _note_costs(self, steps: Steps) -> None:
        """Tell those who weigh it what a pass of several texts has cost."""
        count = len(self._texts)
        told: list[BatchCosts] = []
        for text in self._texts:
            costs = text.beside(count)
            if costs is not None and costs not in told:
                told.append(costs)
        if count < 2 or not steps:
            return
        rows = count * max(len(step.tree) for _, step in steps)
        guesses = any(step.plan.width for _, step in steps)
        tokens = sum(len(step.tokens) for _, step in steps)
        seconds = steps[0][1].seconds if self._on_time else None
        for costs in told:
            costs.note(count, rows, guesses, tokens, seconds)


def _arrays(results: Sequence[StepResult]) -> list[mx.array]:
    """List the arrays that the host will read."""
    return [array for result in results for array in result.arrays()]
