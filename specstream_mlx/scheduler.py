"""The scheduler: sequences read their prompts in chunks, join, take steps and leave."""

import operator
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from .broadcast import Broadcast
from .drafting import Planner
from .drafting.fixed import fixed_planner
from .drafting.rule import rule_planner
from .drafting.settings import USUAL, DraftSettings
from .drafting.step_costs import BatchCosts
from .engine.guess import NO_GUESSES, normalized
from .engine.kv import make_caches
from .engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from .engine.plan import DraftTree, Plan, Verified, root_only
from .engine.step import Decoder, StepResult
from .engine.verify.rule import VerifyRule, check_drawn
from .errors import UserError
from .hardware import running
from .kv_store import PromptCache
from .loading import SpeculativeModel
from .models.architectures import architecture_of, layer_windows
from .request import Request

_AWAY = 0.2  # of a step's time others may have had the thread, if it is to count as the step's


@dataclass(frozen=True, eq=False)
class Step:
    """The tokens of one sequence that one target call committed: accepted drafts, then one more."""

    tokens: list[int]
    plan: Plan
    tested_nodes: int
    seconds: float  # since the step before was read; of the first: since enqueuing
    result: StepResult
    rows: list[int]  # of ``result.logits``, which predict each token
    planner: Planner | None = None  # on rank 0, that of the sequence

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

    Each ``next`` reads a chunk, and returns how many prompt tokens are read. A ``decoder`` of a
    model elsewhere has ``prefill``, ``step``, ``commit`` and ``caches``, and takes no plain steps;
    with it the request's ``drafting`` is a planner. ``reused`` tokens are read already.
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
        self._chunks = self._read(reused)
        self.root, self._left = request.prompt[-1], request.max_tokens
        self.ended, self.count = False, 0
        self.planner: Planner | None = None
        self._broadcast: Broadcast | None = None
        self._guesses = NO_GUESSES

    # The prompt ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[int]:
        return self._chunks

    def _read(self, reused: int) -> Iterator[int]:
        request, decoder, caches = self.request, self.decoder, self.decoder.caches
        unread = request.prompt[reused:-1]
        self._progress(reused)
        for start in range(0, len(unread), request.prefill_step_size):
            with mx.stream(running.generation_stream):
                part = unread[start : start + request.prefill_step_size]
                decoder.prefill(mx.array(list(part)))
                request.quantization.apply(caches)
                mx.eval([cache.state for cache in caches])
                mx.clear_cache()
            read = reused + start + len(part)
            self._progress(read)
            yield read
        if self._cache is not None:
            self._cache.extend(self._generation, unread)

    def _progress(self, read: int) -> None:
        if self.request.progress is not None:
            self.request.progress(read, len(self.request.prompt))

    # Steps --------------------------------------------------------------------------------------

    def start(self, broadcast: Broadcast | None) -> None:
        """Plan the first step; the prompt has been read."""
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

    def take(self, step: Step, seconds: float | None) -> None:
        """Take in the newest step and its time; unless it ends the sequence, plan the next one."""
        if self._cache is not None and self._reusable:
            self._unrecorded += [self.root, *step.tokens[:-1]]
        self.root = step.tokens[-1]
        if self._left is not None:
            self._left -= len(step.tokens)
        over = self._left is not None and self._left <= 0
        self.ended = over or any(token in self.request.end_tokens for token in step.tokens)
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

_Call = tuple[list[Plan], list[StepResult], float]
"""A target call under way: its plans and results, and when it was enqueued."""


class Scheduler:
    """A batch of sequences, each token for token as alone; they join and leave between steps."""

    def __init__(self, alone: Callable[[], bool] | None = None):
        self._alone = alone  # says whether the time between two steps is theirs; None: it is
        self._decoder: Any = None
        self._present: list[TokenSequence] = []  # in the decoder's order
        self._joining: list[TokenSequence] = []
        self._going: list[TokenSequence] = []  # of both, those that have not left
        self._call: _Call | None = None
        self._broadcast: Broadcast | None = None
        self._costs: set[BatchCosts] = set()  # of passes of several, which planners weigh
        self._newest: list[int] = []  # tokens of the last step
        self._count = 0
        self._last_read: float | None = None
        self._returned = 0.0  # time at which the last step was returned
        self._away = 0.0  # seconds since the last reading in which others had the thread
        self._on_time = False  # whether the last step's time is its own

    def __len__(self) -> int:
        return len(self._going)

    def takes(self, model: SpeculativeModel) -> bool:
        """Whether a sequence of a model may go through one pass with the others."""
        return not stays_alone(model) and all(
            one.model is None or share_a_pass(model, one.model) for one in self._going
        )

    def add(self, sequence: TokenSequence) -> TokenSequence:
        """Read the rest of a sequence's prompt and let it join after the call under way."""
        model = sequence.model
        if self._going and model is not None:
            quantized = any(one.request.quantizes for one in (sequence, *self._going))
            if quantized or stays_alone(model):
                raise UserError(
                    "one of several texts has a quantized KV cache, sliding windows or learned "
                    "positions, expected it alone"
                )
        for _ in sequence:
            pass
        if self._broadcast is None and model is not None and model.ranks is not None:
            self._broadcast = Broadcast(model.ranks)
        sequence.start(self._broadcast)
        if self._decoder is None:
            self._decoder = sequence.decoder
            self._present.append(sequence)
        else:
            self._joining.append(sequence)
        self._going.append(sequence)
        return sequence

    def remove(self, sequence: TokenSequence) -> None:
        """Stop a sequence early; the call under way is the last one that it is part of."""
        sequence.ended = True
        if sequence in self._going:
            self._going.remove(sequence)
            sequence.finish(lambda: self._caches_of(sequence))

    def steps(self) -> Iterator[Steps]:
        """Decode until all sequences have ended; they may join or leave after each step."""
        try:
            while steps := self.step():
                yield steps
        finally:
            self.close()

    def close(self) -> None:
        if self._broadcast is not None:
            self._broadcast.over()
        for sequence in list(self._going):
            self.remove(sequence)

    def step(self) -> Steps:
        """Take a step of all sequences; empty: none is left, here or on rank 0.

        When it returns, the next call usually runs already: of trees, from the second step on.
        """
        self._away += time.perf_counter() - self._returned
        for sequence in self._going:
            sequence.check_current()
        later, broadcast = bool(self._count), self._broadcast
        if later and broadcast is not None and not broadcast.goes_on(self._newest):
            return []
        call, self._call = self._call, None
        if call is not None and all(sequence.ended for sequence in self._present):
            if _are_plain(call[0]):
                self._decoder.uncommit(1)
            call = None
        if call is None:
            self._regroup()
            if not self._present:
                return []
            call = self._enqueue()
        steps = self._read_plain(*call) if _are_plain(call[0]) else self._read_trees(*call)
        self._newest = [token for _, step in steps for token in step.tokens]
        for sequence, _ in steps:
            sequence.record(self._decoder.caches)
            if sequence.ended:
                self.remove(sequence)
        self._returned = time.perf_counter()
        return steps

    def _regroup(self) -> None:
        going = [number for number, one in enumerate(self._present) if not one.ended]
        joining = [one for one in self._joining if not one.ended]
        self._joining = []
        if (joining or len(going) < len(self._present)) and (joining or going):
            with mx.stream(running.generation_stream):
                self._decoder.regroup(going, [one.decoder for one in joining])
            self._last_read = None  # the next call's time includes the change
            for one in joining:
                one.decoder = self._decoder  # its own would hold its rows a second time
        self._present = [self._present[number] for number in going] + joining
        costs = [one.share_pass(len(self._present)) for one in self._present]
        self._costs = {one for one in costs if one is not None}

    def _caches_of(self, sequence: TokenSequence) -> list[Any]:
        with mx.stream(running.generation_stream):
            caches: list[Any] = self._decoder.rows_of(self._present.index(sequence))
        if caches is not self._decoder.caches:
            mx.eval([cache.state for cache in caches])  # else they would keep those of all
        return caches

    def _enqueue(self) -> _Call:
        start, plans = time.perf_counter(), [sequence.plan for sequence in self._present]
        if _are_plain(plans):
            roots = [mx.array([sequence.root]) for sequence in self._present]
            return self._enqueue_plain(plans, roots, start)
        with mx.stream(running.generation_stream):
            results = self._decoder.step(plans, [one.rule for one in self._present])
        mx.async_eval(*_arrays(results))
        return plans, results, start

    def _enqueue_plain(self, plans: list[Plan], roots: list[mx.array], start: float) -> _Call:
        """Enqueue a call of one token a sequence, each after a root of its own, (1,)."""
        with mx.stream(running.generation_stream):  # what comes from another stream is waited for
            rules = [sequence.rule for sequence in self._present]
            results = self._decoder.next_token(mx.stack(roots), rules)
        mx.async_eval(*[result.predictions for result in results])
        return plans, results, start

    def _read_plain(self, plans: list[Plan], results: list[StepResult], start: float) -> Steps:
        """Read plain steps; the next call is enqueued before."""
        with mx.stream(running.generation_stream):
            for sequence, result in zip(self._present, results, strict=True):
                sequence.rule.commit(result.predictions)
            self._quantize()
        if all(sequence.goes_on for sequence in self._present) and not self._joining:
            roots = [result.predictions for result in results]
            self._call = self._enqueue_plain(plans, roots, start)
        seconds, steps = None, []
        for sequence, plan, result in zip(self._present, plans, results, strict=True):
            token = int(np.array(result.predictions).item())
            seconds = self._seconds(start) if seconds is None else seconds
            if sequence.ended:  # while the call was under way
                continue
            check_drawn([token])
            plan = replace(plan, tree=root_only(sequence.root))
            steps.append((sequence, Step([token], plan, 1, seconds, result, [0], sequence.planner)))
        self._plan(steps)
        return steps

    def _read_trees(self, plans: list[Plan], results: list[StepResult], start: float) -> Steps:
        """Read steps of trees and commit the accepted rows; then enqueue the next call."""
        present = self._present
        mx.eval(*_arrays(results))
        accepted = [result.accepted(plan.tree) for plan, result in zip(plans, results, strict=True)]
        written = []
        with mx.stream(running.generation_stream):
            for plan, result, (_, path, _) in zip(plans, results, accepted, strict=True):
                written.append([*plan.tree.tokens[path[1:]].tolist(), result.prediction()])
                check_drawn(written[-1])
            _, paths, kept_paths = zip(*accepted, strict=True)
            self._decoder.commit(paths, kept_paths)
            for sequence, tokens in zip(present, written, strict=True):
                sequence.rule.commit(tokens)
            self._quantize()
        seconds = self._seconds(start)
        each = zip(present, written, plans, results, accepted, strict=True)
        steps = [
            (sequence, Step(tokens, plan, tested, seconds, result, kept_path, sequence.planner))
            for sequence, tokens, plan, result, (tested, _, kept_path) in each
            if not sequence.ended  # while the call was under way
        ]
        self._plan(steps)
        # The first token does not wait for a second call: on a CPU enqueueing does most of it.
        first = any(sequence.count == 1 for sequence in present)
        changes = any(sequence.ended for sequence in present) or bool(self._joining)
        if not first and not changes and not _are_plain([one.plan for one in present]):
            self._call = self._enqueue()
        return steps

    def _quantize(self) -> None:
        """Quantize the KV cache once it is long enough; between calls, as mlx_lm does."""
        for sequence in self._present:
            sequence.request.quantization.apply(self._decoder.caches)

    def _seconds(self, start: float) -> float:
        """Return the seconds since the last step was read; for the first step, since ``start``."""
        now, last = time.perf_counter(), self._last_read
        seconds = now - (start if last is None else last)
        self._on_time = last is not None and self._away < _AWAY * seconds
        self._last_read, self._away = now, 0.0
        return seconds

    def _plan(self, steps: Steps) -> None:
        count = len(self._present)
        if count > 1 and steps:
            rows = count * max(len(step.tree) for _, step in steps)
            guesses = any(step.plan.width for _, step in steps)
            tokens = sum(len(step.tokens) for _, step in steps)
            seconds = steps[0][1].seconds if self._on_time else None
            for costs in self._costs:
                costs.note(count, rows, guesses, tokens, seconds)
        # A call of several says nothing of one of them.
        timed = count == 1 and (self._alone is None or self._alone())
        for sequence, step in steps:
            sequence.take(step, step.seconds if timed else None)
        self._count += 1
        if self._count % 64 == 0:
            mx.clear_cache()


def _are_plain(plans: Sequence[Plan]) -> bool:
    return all(plan.pipelined for plan in plans)


def _arrays(results: Sequence[StepResult]) -> list[mx.array]:
    return [array for result in results for array in result.arrays()]


def decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    """Check that a model can do what is requested, and decode it, one ``Step`` per target call."""
    request.check(model)
    return running.closed_at_exit(_decode(model, request))


def _decode(model: SpeculativeModel, request: Request) -> Generator[Step, None, None]:
    yield from steps_of(TokenSequence(model, request))


def steps_of(sequence: TokenSequence) -> Iterator[Step]:
    """Decode a single sequence, one ``Step`` per target call; its prompt is read first."""
    scheduler = Scheduler()
    scheduler.add(sequence)
    for [(_, step)] in scheduler.steps():
        yield step


def stays_alone(model: SpeculativeModel) -> bool:
    """Whether a model's sequences take passes of their own, for its positions, masks or windows."""
    architecture = architecture_of(model.config["model_type"])
    windows = layer_windows(model.config, model.model)
    learned = architecture.positions != "rope"
    return learned or architecture.array_masks or any(window is not None for window in windows)


def share_a_pass(first: SpeculativeModel, second: SpeculativeModel) -> bool:
    """Whether texts of two models can be decoded side by side: one base, adapters that fit."""
    same_head = first.head is second.head
    return first is second or (same_head and first.layout.fits(second.layout))


def fill(
    prompt_cache: PromptCache,
    model: SpeculativeModel,
    prompt: Sequence[int],
    prefill_step_size: int = 2048,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> None:
    """Read a prompt into ``prompt_cache``, so that it holds a KV row for each of its tokens."""
    quantization.check(model.model, model.config)
    # A sequence leaves its last token unread: that of the prompt is read by itself, as by mlx_lm.
    request = Request(
        prompt,
        prefill_step_size=prefill_step_size,
        quantization=quantization,
        prompt_cache=prompt_cache,
    )
    for tokens in (prompt, [*prompt, prompt[-1]]):
        for _ in TokenSequence(model, replace(request, prompt=tokens)):
            pass
