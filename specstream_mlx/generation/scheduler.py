"""The scheduler of a pass: sequences join, take steps with one target call, and leave."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from ..drafting.batch_costs import BatchCosts
from ..engine.plan import Plan, root_only
from ..engine.step import StepResult
from ..engine.verify.rule import check_drawn
from ..hardware import running
from ..loading.speculative_model import SpeculativeModel
from ..models.architectures import architecture_of, layer_windows
from .broadcast import Broadcast
from .sequence import Step, Steps, TokenSequence

_AWAY = 0.2  # a step is timed only if the caller held the thread for less than this share of it


_Call = tuple[list[Plan], list[StepResult], float, bool]
"""A target call under way: its plans and results, when it was enqueued, and whether that went as it
will from now on: not if a compiled step is still to be compiled."""


class Scheduler:
    """The sequences of one pass, each as it is alone; they join and leave between steps."""

    def __init__(self, is_timed: Callable[[], bool]):
        self._is_timed = is_timed  # whether the time between two steps is theirs alone
        self._decoder: Any = None
        self._present: list[TokenSequence] = []  # in the decoder's order
        self._joining: list[TokenSequence] = []
        self.going: list[TokenSequence] = []  # of both, those that have not left
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
        return len(self.going)

    def takes(self, model: SpeculativeModel | None) -> bool:
        """Whether a sequence of a model may go through one pass with these."""
        return all(
            not sequence.request.quantizes and _fit(model, sequence.model)
            for sequence in self.going
        )

    def add(self, sequence: TokenSequence) -> None:
        """Let a sequence whose prompt has been read join after the call under way."""
        model = sequence.model
        if self._broadcast is None and model is not None and model.ranks is not None:
            self._broadcast = Broadcast(model.ranks)
        sequence.start(self._broadcast)
        if self._decoder is None:
            self._decoder = sequence.decoder
            self._present.append(sequence)
        else:
            self._joining.append(sequence)
        self.going.append(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Stop a sequence early; the call under way is the last one that it is part of."""
        sequence.ended = True
        if sequence in self.going:
            self.going.remove(sequence)
            sequence.finish(lambda: self._caches_of(sequence))

    def close(self) -> None:
        """Stop all sequences, and tell the other ranks so."""
        if self._broadcast is not None:
            self._broadcast.over()
        for sequence in list(self.going):
            self.remove(sequence)

    def step(self) -> Steps:
        """Take a step of all sequences; empty: none is left, here or on rank 0.

        When it returns, the next call usually runs already: of trees, from the second step on.
        """
        self._away += time.perf_counter() - self._returned
        for sequence in self.going:
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
        return plans, results, start, self._is_settled()

    def _enqueue_plain(self, plans: list[Plan], roots: list[mx.array], start: float) -> _Call:
        """Enqueue a call of one token a sequence, each after a root of its own, (1,)."""
        with mx.stream(running.generation_stream):  # what comes from another stream is waited for
            rules = [sequence.rule for sequence in self._present]
            results = self._decoder.next_token(mx.stack(roots), rules)
        mx.async_eval(*[result.predictions for result in results])
        return plans, results, start, self._is_settled()

    def _is_settled(self) -> bool:
        compiled = getattr(self._decoder, "compiled", None)
        return compiled is None or compiled.settled

    def _read_plain(
        self, plans: list[Plan], results: list[StepResult], start: float, settled: bool
    ) -> Steps:
        """Read plain steps; the next call is enqueued before."""
        with mx.stream(running.generation_stream):
            for sequence, result in zip(self._present, results, strict=True):
                sequence.rule.commit(result.predictions)
            self._quantize()
        if all(sequence.goes_on for sequence in self._present) and not self._joining:
            roots = [result.predictions for result in results]
            self._call = self._enqueue_plain(plans, roots, start)
            settled = settled and self._call[-1]  # which takes part of this step's time
        seconds, steps = None, []
        for sequence, plan, result in zip(self._present, plans, results, strict=True):
            token = int(np.array(result.predictions).item())
            seconds = self._seconds(start) if seconds is None else seconds
            if sequence.ended:  # while the call was under way
                continue
            check_drawn([token])
            plan = replace(plan, tree=root_only(sequence.root))
            end = sequence.end_of([token])
            step = Step([token], plan, 1, seconds, result, [0], *end, sequence.planner)
            steps.append((sequence, step))
        self._plan(steps, settled)
        return steps

    def _read_trees(
        self, plans: list[Plan], results: list[StepResult], start: float, settled: bool
    ) -> Steps:
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
        steps = []
        for sequence, tokens, plan, result, (tested, _, rows) in each:
            if not sequence.ended:  # while the call was under way
                end = sequence.end_of(tokens)
                step = Step(tokens, plan, tested, seconds, result, rows, *end, sequence.planner)
                steps.append((sequence, step))
        self._plan(steps, settled)
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

    def _plan(self, steps: Steps, settled: bool) -> None:
        count = len(self._present)
        if count > 1 and steps:
            rows = count * max(len(step.tree) for _, step in steps)
            guesses = any(step.plan.width for _, step in steps)
            tokens = sum(len(step.tokens) for _, step in steps)
            seconds = steps[0][1].seconds if self._on_time and settled else None
            for costs in self._costs:
                costs.note(count, rows, guesses, tokens, seconds)
        # A call of several says nothing of one of them.
        timed = count == 1 and self._is_timed() and settled
        for sequence, step in steps:
            sequence.take(step, step.seconds if timed else None)
        self._count += 1
        if self._count % 64 == 0:
            mx.clear_cache()


def _are_plain(plans: Sequence[Plan]) -> bool:
    return all(plan.pipelined for plan in plans)


def _arrays(results: Sequence[StepResult]) -> list[mx.array]:
    return [array for result in results for array in result.arrays()]


def _fit(first: SpeculativeModel | None, second: SpeculativeModel | None) -> bool:
    """Whether sequences of two models can go through one pass: one base, adapters that fit."""
    if first is None or second is None:
        return False
    architecture = architecture_of(first.config["model_type"])
    if architecture.positions != "rope" or architecture.array_masks:
        return False
    if any(window is not None for window in layer_windows(first.config, first.model)):
        return False
    same_head = first.head is second.head
    return first is second or (same_head and first.layout.fits(second.layout))
