"""The loop over target calls: plain steps and tree steps of texts whose prompts have been read."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from .broadcast import Broadcast
from .drafting import Drafting, Sharing
from .drafting.batch_cost import BatchCosts
from .engine.draft_head import HeadWatch
from .engine.guess import NO_GUESSES
from .engine.kv import NEVER_QUANTIZED, KVQuantization
from .engine.plan import Plan, Verified, root_only
from .engine.profile import NO_PROFILE, Profile
from .engine.sampling import check_drawn
from .engine.step import Decoder, StepResult
from .engine.verify.rule import VerifyRule
from .hardware import device
from .request import Request, Step

_AWAY = 0.2
"""Share of a step's time that others may have had the thread, if it is to count as the step's."""


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
        request: see ``scheduler.decode``.
        drafting: the object that plans the steps; pipelined plans need a ``Decoder``.
    """
    for [(_, step)] in Loop(decoder, Text(request, drafting)).steps():
        yield step


class Loop:
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
