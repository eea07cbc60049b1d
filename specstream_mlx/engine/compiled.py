"""Steps under ``mx.compile``: Python builds a step's graph once for each shape, MLX from then on.

What a step computes depends on its numbers of rows and streams, on the room of the KV buffers and
on the model. All else goes in as arrays: tokens, the tree's parents, depths and masks, the number
of committed rows. Buffers go in whole, and masks hide what lies after the committed rows. So one
trace serves all trees of a size, and a GPU need not wait for Python to build one more.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from ..hardware import device
from ..models.shared_copy import shared_copy
from ..models.streams import Streams
from .borrowed_model import BorrowedModel
from .kv import CommittedRows, SideBySideKVCache, UncommittedRows
from .rows import Rows, StepInputs
from .verify.rule import VerifyRule

AnyDecoder = Any
"""``step.Decoder``, which is on a floor above; traces run it on their own arrays."""

MOST_TRACES = 64
"""Traces kept for a model; the least recently used one is dropped. While costs of steps are timed
on a GPU, some 50 are in use: with 32 that took 1,158 steps, with 64 it takes 779."""

TRACED_AT = 3
"""How often a shape must occur before it is traced: tracing costs what some ten steps save.

At 1 all steps of a shape are built in the same way, so that their values are the same in 16 bit.
"""

_SPARE = 1.5
"""How many times larger than necessary buffers may be; larger ones are cut."""


def room_for(rows: int) -> int:
    """Return the room of KV buffers that take so many rows: 64 or 256, then 96, 128, 192, .."""
    room = device.least_room()
    while room < rows:
        room = room * 3 // 2 if room & (room - 1) == 0 else room * 4 // 3
    return room


class _TracedRows(SideBySideKVCache):
    """One layer's buffers in a trace, which have room for what is written."""

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array):
        self.keys, self.values, self.offset = keys, values, offset

    def columns(self, rows: int) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    def write(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert self.keys is not None and self.values is not None
        if len(keys) > 1:
            self.keys, self.values = self.put(self.keys, self.values, keys, values)
        else:
            self.keys = mx.slice_update(self.keys, keys, self.offset, (2,))
            self.values = mx.slice_update(self.values, values, self.offset, (2,))
        return self.keys, self.values


class CompiledSteps:
    """The traces of a model with its streams; ``counts`` says how steps were built."""

    def __init__(self, model: nn.Module, streams: Streams | None, traced_at: int = TRACED_AT):
        self.model, self.streams, self.traced_at = model, streams, traced_at
        self.counts: Counter[str] = Counter()
        self.settled = True  # whether the newest step was built as all of its shape will be
        self.forget()

    def __len__(self) -> int:
        return len(self._traces)

    def forget(self) -> None:
        """Drop all traces, since the model's tensors have been replaced."""
        self._borrowed: BorrowedModel | None = None
        self._traces: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()

    def sentence(self) -> str:
        """Say how steps were built so far."""
        counts = self.counts.most_common()
        return ", ".join(f"{count} {how}" for how, count in counts) or "none yet"

    def logits(self, decoder: AnyDecoder, tokens: mx.array) -> mx.array | None:
        """Run a plain step: logits (sequences, 1, vocab); ``None``: Python must build it."""
        shape = "plain", len(tokens)
        return self._run(decoder, 1, shape, lambda inner, ids: inner.logits_after(ids), tokens)

    def forward(self, decoder: AnyDecoder, inputs: StepInputs) -> tuple[Any, ...] | None:
        """Run moves one to five and the head: nodes' fields, logits, hidden; or ``None``."""

        def forward(inner: AnyDecoder, *arrays: Any) -> tuple[Any, ...]:
            made = inner.forward(_with_arrays(inputs, *arrays))
            return tuple(vars(made.nodes).values()), made.logits, made.hidden

        return self._run_trees(decoder, inputs, "forward", forward)

    def step(self, decoder: AnyDecoder, inputs: StepInputs) -> list[Any] | None:
        """Run moves one to six, for ``greedy``: each sequence's result by fields, or ``None``."""
        rules = [VerifyRule() for _ in inputs.plans]

        def step(inner: AnyDecoder, *arrays: Any) -> list[Any]:
            traced = _with_arrays(inputs, *arrays)
            results = inner.decide(traced, rules, inner.forward(traced))
            return [result.as_fields() for result in results]

        return self._run_trees(decoder, inputs, "step", step)

    def _run_trees(
        self, decoder: AnyDecoder, inputs: StepInputs, name: str, function: Callable[..., Any]
    ) -> Any:
        plan, shapes, sees = inputs.plan, inputs.shapes, inputs.sees
        rows = inputs.tokens.shape[1] if sees is None else sees.shape[1]
        tables = [shapes.parents, shapes.depths, shapes.ancestors]
        if plan.prunes:
            tables += shapes.inner
        numbers = [None if ids is None else mx.array(ids) for ids in plan.expand]
        arrays = inputs.tokens, tables, sees, inputs.stream_nodes, numbers
        shaped = *tables, inputs.stream_nodes, *numbers
        sizes = [None if array is None else array.shape for array in shaped]
        plans = plan.streams, plan.width, plan.keep, plan.threshold, *inputs.sizes
        return self._run(decoder, rows, (name, rows, *plans, *sizes), function, *arrays)

    def move(self, layers: Sequence[UncommittedRows], paths: mx.array) -> bool:
        """Write the accepted of the new rows after the committed ones, see ``kv.commit``.

        ``False``: Python must do it.
        """
        caches = [rows.cache for rows in layers]
        if not caches or not all(map(_is_known, caches)):
            return False
        offset, keys, values = _state(caches)
        new: list[Any] = [rows.new for rows in layers]
        key = "move", len(layers), keys[0].shape, new[0][0].shape, paths.shape
        trace = self._trace(key, lambda: mx.compile(_moved))
        if trace is None:
            return False
        _replace(caches, *trace(offset, keys, values, new, paths))
        return True

    # Traces ---------------------------------------------------------------------------------------

    def _run(
        self,
        decoder: AnyDecoder,
        rows: int,
        shape: Sequence[Hashable],
        function: Callable[..., Any],
        *arrays: Any,
    ) -> Any:
        """Run a function of a decoder and of arrays, which write so many rows, by its trace."""
        caches = decoder.caches
        if not all(map(_is_known, caches)):
            self.counts["built by Python (another KV cache)"] += 1
            self.settled = True
            return None
        _make_room(caches, rows)
        offset, keys, values = _state(caches)
        key = *shape, keys[0].shape, decoder.kind
        self.settled = key in self._traces  # a step that is traced takes longer, too
        trace = self._trace(key, lambda: self._traced(decoder, function))
        if trace is None:
            self.counts["built by Python (few of their shape)"] += 1
            return None
        self.counts["compiled"] += 1
        drafted = decoder.model.drafted_rows  # a copy, which no trace may keep
        tensors = None if drafted is None else drafted.parameters()
        results, keys, values, new = trace(offset, keys, values, tensors, *arrays)
        _replace(caches, keys, values)
        decoder.uncommitted = [UncommittedRows(cache, Rows(0)) for cache in caches]
        for rows_of_layer, pair in zip(decoder.uncommitted, new, strict=True):
            rows_of_layer.new = pair
        return results

    def _trace(
        self, key: Hashable, make: Callable[[], Callable[..., Any]]
    ) -> Callable[..., Any] | None:
        trace = self._traces.get(key)
        if trace is None:
            self._seen[key] += 1
            if self._seen[key] < self.traced_at:
                return None
            trace = self._traces[key] = make()
            del self._seen[key]  # if it goes, it is made again only when it is as frequent again
            if len(self._traces) > MOST_TRACES:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return trace

    def _traced(self, decoder: AnyDecoder, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._borrowed is None:
            self._borrowed = BorrowedModel(self.model, self.streams, traced=True)
            self._borrowed.release_vocabulary()
        model, outside = self._borrowed, decoder.with_model(self._borrowed)
        drafted = decoder.model.drafted_rows
        rows = None if drafted is None else shared_copy(drafted)

        def run(
            offset: mx.array, keys: list[Any], values: list[Any], tensors: Any, *arrays: Any
        ) -> Any:
            inner = copy(outside)
            pairs = zip(keys, values, strict=True)
            layers = [_TracedRows(*pair, offset) for pair in pairs]
            inner.caches = list[CommittedRows](layers)
            model.drafted_rows = None if rows is None else rows.update(tensors)
            results = function(inner, *arrays)
            model.release_vocabulary()
            model.forget_angles()
            new = [rows.new for rows in inner.uncommitted]
            return results, [rows.keys for rows in layers], [rows.values for rows in layers], new

        return mx.compile(run)


# KV buffers -----------------------------------------------------------------------------------


def _is_known(cache: Any) -> bool:
    return type(cache) in (KVCache, SideBySideKVCache) and cache.keys is not None


def _make_room(caches: Sequence[Any], rows: int) -> None:
    """Resize all layers' buffers to a size of ``room_for``: large enough, not much larger."""
    first = caches[0]
    committed = first.offset if isinstance(first, KVCache) else max(first.lengths)
    present, least = first.keys.shape[2], room_for(committed + rows)
    if least <= present <= _SPARE * least and present == room_for(present):
        return
    for cache in caches:
        for name in ("keys", "values"):
            array = getattr(cache, name)[..., :least, :]
            missing = [(0, 0), (0, 0), (0, least - array.shape[2]), (0, 0)]
            setattr(cache, name, mx.pad(array, missing))


def _state(caches: Sequence[Any]) -> tuple[mx.array, list[mx.array], list[mx.array]]:
    offset = caches[0].offset
    offset = mx.array([offset]) if isinstance(offset, int) else offset
    return offset, [cache.keys for cache in caches], [cache.values for cache in caches]


def _replace(caches: Sequence[Any], keys: Sequence[mx.array], values: Sequence[mx.array]) -> None:
    for cache, of_keys, of_values in zip(caches, keys, values, strict=True):
        cache.keys, cache.values = of_keys, of_values


def _moved(
    offset: mx.array,
    keys: Sequence[mx.array],
    values: Sequence[mx.array],
    new: Sequence[tuple[mx.array, mx.array]],
    paths: mx.array,
) -> tuple[list[mx.array], list[mx.array]]:
    written = []
    for layer, pair in zip(zip(keys, values, strict=True), new, strict=True):
        rows = (mx.take_along_axis(array, paths, axis=2) for array in pair)
        written.append(_TracedRows(*layer, offset).write(*rows))
    return [k for k, _ in written], [v for _, v in written]


def _with_arrays(
    inputs: StepInputs,
    tokens: mx.array,
    tables: Sequence[mx.array],
    sees: mx.array | None,
    stream_nodes: mx.array | None,
    numbers: Sequence[Any],
) -> StepInputs:
    """Return inputs whose arrays are those of a trace."""
    shapes = copy(inputs.shapes)
    shapes.parents, shapes.depths, shapes.ancestors, *inner = tables
    if inner:
        shapes.inner = inner[0], inner[1]
    plan = replace(inputs.plan, expand=tuple(numbers))
    inputs = replace(inputs, plan=plan, shapes=shapes, tokens=tokens)
    return replace(inputs, sees=sees, stream_nodes=stream_nodes)
