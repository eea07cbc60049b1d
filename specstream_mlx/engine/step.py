"""One decoding step: the seven moves of Speculative Streaming (arXiv 2402.11131, section 3).

Five stand top to bottom in ``Decoder.forward``, the sixth is ``Decoder.decide``, and both only
enqueue; the host then reads which nodes were accepted, and ``Decoder.commit`` is the seventh.
Hidden states have an axis of sequences; after the head every sequence is by itself.
"""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from ..models.streams import Streams
from .borrowed_model import BorrowedModel
from .compiled import CompiledSteps
from .draft_head import AcceptedRows, DraftHead, MountedHead, Rank, accepted_rows
from .guess import NO_GUESSES, WHOLE_HEAD, Scorer, StreamGuesses, guess, without_barred
from .key_selection import SelectingRows
from .kv import CommittedRows, SideBySideKVCache, UncommittedRows, commit
from .plan import DraftTree, Plan, widest
from .prune import keep_best, path_scores
from .rows import Rows, StepInputs, TreeNodes, at, rows_with_streams, shapes_of
from .several_adapters import Gathered, MountedAdapter
from .verify.rule import PathEnd, VerifyRule


@dataclass(frozen=True, eq=False)
class StreamResult:
    """The guesses of the last accepted node's streams, as in ``StreamGuesses``, unevaluated.

    ``logits`` (streams, n) are of the tokens that may be drafted, after the first path; ``None``
    where only shortlists were scored. ``present`` () bool: whether the node has streams; ``None``:
    every node has.
    """

    candidates: mx.array
    log_probs: mx.array
    parents: mx.array | None = None
    logits: mx.array | None = None
    present: mx.array | None = None


@dataclass(frozen=True, eq=False)
class StepResult:
    """Device arrays of one step of one sequence, not yet evaluated."""

    last: mx.array  # () int32, index of the last accepted node among the kept ones
    predictions: mx.array  # (m,) int32, the target's token after each kept node, by the verify rule
    logits: mx.array | None  # (m, vocab), processed; ``None``: the decoder returns arg-maxes alone
    kept: mx.array | None = None  # (m,) indices of the kept nodes; ``None``: all
    in_play: mx.array | None = None  # (m,) bool, not below pruning's threshold; ``None``: all
    streams: StreamResult | None = None

    def as_fields(self) -> tuple[Any, ...]:
        *arrays, streams = vars(self).values()
        return *arrays, None if streams is None else tuple(vars(streams).values())

    @classmethod
    def of_fields(cls, fields: Sequence[Any]) -> "StepResult":
        last, predictions, logits, kept, in_play, streams = fields
        guessed = None if streams is None else StreamResult(*streams)
        return cls(last, predictions, logits, kept, in_play, guessed)

    def guesses(self) -> StreamGuesses:
        """Read the streams' guesses to the host; there are none where no streams ran."""
        streams = self.streams
        if streams is None or (streams.present is not None and not streams.present.item()):
            return NO_GUESSES
        parents = None if streams.parents is None else np.array(streams.parents)
        return StreamGuesses(np.array(streams.candidates), np.array(streams.log_probs), parents)

    def accepted(self, tree: DraftTree) -> tuple[int, list[int], list[int]]:
        """Read the number of tested nodes, and the accepted path as tree and kept indices."""
        last = int(np.array(self.last))
        if self.kept is None:
            path = tree.path(last)
            return len(tree), path, path
        kept = np.array(self.kept).tolist()
        path = tree.path(kept[last])
        return int(np.array(self.in_play).sum()), path, [kept.index(node) for node in path]

    def prediction(self) -> int:
        """Return the target's own token after the accepted path: the correction or bonus token."""
        return int(np.array(self.predictions)[np.array(self.last)])

    def predictions_of(self, tree: DraftTree) -> np.ndarray:
        """Return the target's token after each node of the tree, (n,) int32; -1 at pruned ones."""
        predicted = np.array(self.predictions)
        if self.kept is None:
            return predicted
        predictions = np.full(len(tree), -1, np.int32)
        predictions[np.array(self.kept)] = np.where(np.array(self.in_play), predicted, -1)
        return predictions

    def arrays(self) -> list[mx.array]:
        """List the arrays that the host will read, so that they can be evaluated together."""
        arrays = [self.last, self.predictions, self.kept, self.in_play]
        if (streams := self.streams) is not None:
            arrays += [streams.candidates, streams.log_probs, streams.parents, streams.present]
        return [array for array in arrays if array is not None]


@dataclass(frozen=True, eq=False)
class Forward:
    """The outputs of the model for the trees."""

    nodes: TreeNodes
    logits: list[mx.array]  # of each sequence, (nodes, vocab)
    hidden: mx.array | None = None  # streams (sequences, rows, h); ``None``: none ran


class Decoder:
    """One model, its streams and its KV caches: the state of the sequences being decoded.

    ``caches`` are of the first sequence; between two steps quantized ones may replace them.
    Conditioned streams score ``shortlists`` alone, by default where more tokens than ``WHOLE_HEAD``
    may be drafted. ``share`` returns rank 0's array on all ranks. ``head`` guesses where there are
    no streams.
    """

    def __init__(
        self,
        model: nn.Module,
        streams: Streams | None,
        caches: Sequence[KVCache | QuantizedKVCache],
        shortlists: bool | None = None,
        share: Callable[[mx.array], mx.array] | None = None,
        head: MountedHead | None = None,
        compiled: CompiledSteps | None = None,
    ):
        self._share, self._shortlists = share, shortlists
        self.caches: list[CommittedRows] = list(caches)
        boundaries = () if head is None else head.boundaries
        borrowed = BorrowedModel(model, streams, boundaries=boundaries)
        # Of each sequence, none where no head is mounted.
        self._heads: list[DraftHead] = [] if head is None else [head.begin(borrowed)]
        self._gathered: Gathered | None = None
        # Draft heads keep rows of their own, and ranks wait for each other within a step.
        compiled = compiled if share is None and head is None else None
        self._mount([MountedAdapter(model, streams, borrowed, compiled)])
        self.uncommitted: list[UncommittedRows] = []

    # The sequences ------------------------------------------------------------------------------

    def regroup(self, staying: Sequence[int], joining: Sequence["Decoder"] = ()) -> None:
        """Replace the sequences: those of the numbers ``staying`` go on, then others join.

        ``joining`` are of one sequence each, whose adapter's layout fits.
        """
        self.uncommitted = []
        adapters = [self._adapters[number] for number in staying]
        for other in joining:
            mounted = other._adapters[0]
            same = (
                a for a in adapters if a.model is mounted.model and a.streams is mounted.streams
            )
            adapters.append(next(same, mounted))
        self._heads = [self._heads[number] for number in staying if self._heads]
        self._heads += [head for other in joining for head in other._heads]
        self._mount(adapters)
        if not joining and len(staying) > 1:
            for cache in self.caches:
                if isinstance(cache, SideBySideKVCache):
                    cache.keep(staying)
            return
        sequences = [*map(self.rows_of, staying), *(other.caches for other in joining)]
        self.caches = sequences[0]
        if len(sequences) > 1:
            self.caches = [SideBySideKVCache(layer) for layer in zip(*sequences, strict=True)]

    def _mount(self, adapters: list[MountedAdapter]) -> None:
        first: MountedAdapter | Gathered = adapters[0]
        if all(adapter is first for adapter in adapters):
            self._gathered = None  # it has tensors of its own
        else:
            for adapter in adapters:
                adapter.borrowed.release_vocabulary()
            if self._gathered is None or not self._gathered.takes(adapters):
                self._gathered = Gathered(adapters)
            self._gathered.gather(adapters)
            first = self._gathered
        self.model, self.streams, self.compiled = first.borrowed, first.streams, first.compiled
        self._adapters, self._are_shared = adapters, [adapter.is_shared for adapter in adapters]
        layers = len(self.caches)
        self._first_msa_layer = self.streams.config.first_msa_layer if self.streams else layers

    def rows_of(self, number: int) -> list[CommittedRows]:
        """Return the KV caches of a sequence, one per layer; of the only one, ``caches`` itself."""
        if not isinstance(self.caches[0], SideBySideKVCache):
            return self.caches
        several = (cache for cache in self.caches if isinstance(cache, SideBySideKVCache))
        return [cache.of(number) for cache in several]

    # Traces -------------------------------------------------------------------------------------

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """What a step's graph depends on in addition to the plans, the model and its KV buffers."""
        without_streams = tuple(adapter.streams is None for adapter in self._adapters)
        return self._shortlists, *self._are_shared, *without_streams

    def with_model(self, model: BorrowedModel) -> "Decoder":
        """Make a decoder for a trace, which has no KV rows yet."""
        other = copy(self)
        other.model, other.compiled, other.caches, other.uncommitted = model, None, [], []
        other._adapters = [replace(adapter, borrowed=model) for adapter in self._adapters]
        other._gathered = None
        return other

    # Steps --------------------------------------------------------------------------------------

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,) of a single sequence without streams."""
        # Logits are never computed.
        self.model.logits(tokens[None], self._new_rows(Rows(self.caches[0].offset)))
        for head, features in self._read_by_heads():
            head.read(tokens, features)
        commit(self.uncommitted, [range(tokens.size)])
        self.uncommitted = []  # else the prompt's keys and values stay in memory twice

    def next_token(self, tokens: mx.array, rules: Sequence[VerifyRule]) -> list[StepResult]:
        """Plain decoding: commit ``tokens`` (sequences, 1), which may be unevaluated."""
        logits = None if self.compiled is None else self.compiled.logits(self, tokens)
        if logits is None:
            logits = self.logits_after(tokens)
        commit(self.uncommitted, [range(1)] * len(rules))
        pairs = [rule.next_token(logits[number]) for number, rule in enumerate(rules)]
        predictions = self._shared([predictions for predictions, _ in pairs])
        for number, (head, features) in enumerate(self._read_by_heads()):
            head.follow(AcceptedRows(features, tokens[number], predictions[number], mx.array(1)))
            head.commit(1)
        results = zip(predictions, pairs, strict=True)
        return [StepResult(mx.array(0), shared, logits) for shared, (_, logits) in results]

    def logits_after(self, tokens: mx.array) -> mx.array:
        """Run the model over one row of each sequence; returns logits (sequences, 1, vocab)."""
        offset = self.caches[0].offset
        rows = Rows(offset)
        if not isinstance(offset, int):
            rows = Rows(offset[:, None], mx.ones((len(tokens), 1, 1), mx.bool_))
        return self.model.logits(tokens, self._new_rows(rows))

    def uncommit(self, count: int) -> None:
        for rows in (*self.caches, *self._heads):
            rows.trim(count)

    def step(self, plans: Sequence[Plan], rules: Sequence[VerifyRule]) -> list[StepResult]:
        """Verify each sequence's tree and let the streams of the accepted nodes guess.

        The results are unevaluated; read them, then call ``commit``.
        """
        inputs = self._inputs(plans)
        if self.compiled is not None:
            if all(rule.is_greedy for rule in rules):
                compiled = self.compiled.step(self, inputs)
                if compiled is not None:
                    return [StepResult.of_fields(result) for result in compiled]
            else:  # rules that draw have a state on the host
                made = self.compiled.forward(self, inputs)
                if made is not None:
                    nodes, logits, hidden = made
                    forward = Forward(TreeNodes(*nodes), logits, hidden)
                    return self.decide(inputs, rules, forward)
        return self.decide(inputs, rules, self.forward(inputs))

    def _inputs(self, plans: Sequence[Plan]) -> StepInputs:
        trees, shared = [plan.tree for plan in plans], self._are_shared
        plan, shapes = widest(plans, shared), shapes_of(trees)
        padded = np.zeros((len(trees), len(shapes)), np.int32)
        for row, tree in zip(padded, trees, strict=True):
            row[: len(tree)] = tree.tokens
        tokens = mx.array(padded)
        if not plan.runs_streams:
            return StepInputs(plans, plan, shapes, tokens)
        chosen = _nodes_with_streams(plan, trees)
        sees = shapes.visibility(plan.streams, shared, chosen)
        stream_nodes = None if chosen is None else mx.array(chosen)
        return StepInputs(plans, plan, shapes, tokens, sees, stream_nodes)

    def forward(self, inputs: StepInputs) -> Forward:
        """Run moves one to five, and the head."""
        plan, count, sizes = inputs.plan, inputs.plan.streams, inputs.sizes

        # 1. Embed the nodes; a node's position is that of the root plus its depth.
        offset = self.caches[0].offset
        tokens, nodes = inputs.tokens, inputs.nodes(offset)
        rows = Rows(nodes.positions, nodes.ancestors)
        if inputs.shapes.chains and isinstance(offset, int):
            rows = Rows(offset)
        if not plan.runs_streams:
            logits = self.model.logits(tokens, self._new_rows(rows), early=True)
            return Forward(nodes, _of_each(logits, sizes))

        # 2. MHA layers, over the nodes alone.
        main = self.model.lower(tokens, self._new_rows(rows), self._first_msa_layer)

        # 3. Prune by the early exit's scores.
        if plan.prunes:
            inner, place = inputs.shapes.inner
            logits, drafted = self.model.early_exit(at(main, inner)), None
            if min(sizes) < len(nodes):
                drafted = mx.arange(len(nodes)) < mx.array(sizes)[:, None]
            known = tokens, place, nodes.ancestors
            [scores] = self._shared([path_scores(logits, *known, plan.threshold, drafted)])
            kept, in_play = keep_best(scores, min(plan.keep or len(nodes), len(nodes)))
            nodes, main = nodes.keep(kept, in_play), at(main, kept)
            sizes = [min(size, len(nodes)) for size in sizes]

        # 4. Seed the streams at the nodes.
        streams, stream_nodes, sees = self.streams, inputs.stream_nodes, inputs.sees
        assert streams is not None and sees is not None
        seeded = main if stream_nodes is None else at(main, stream_nodes)
        seeds = streams.seed(seeded, count).flatten(1, 2)
        rows = rows_with_streams(nodes, tokens.shape[1], count, sees, stream_nodes)

        # 5. MSA layers, over nodes and streams.
        first, keys = self._first_msa_layer, streams.config.stream_keys
        rotate = streams.value_rotation(len(nodes), seeds.shape[1], count)
        for number in range(first, len(self.caches)):
            common = self.caches[number], rows, rotate
            self.uncommitted[number] = (
                SelectingRows(*common, keys, count, len(nodes), stream_nodes)
                if keys
                else UncommittedRows(*common)
            )
        hidden = mx.concatenate([main, seeds], axis=1)
        hidden = self.model.layers(hidden, self.uncommitted, first, main_rows=len(nodes))
        main, hidden = mx.split(hidden, [len(nodes)], axis=1)
        return Forward(nodes, self._head(main, sizes), hidden)

    def decide(
        self, inputs: StepInputs, rules: Sequence[VerifyRule], forward: Forward
    ) -> list[StepResult]:
        """Run move six: verification, then the streams of the last accepted nodes."""
        plan, trees, streams = inputs.plan, [each.tree for each in inputs.plans], self.streams
        each, results = self._verified(rules, trees, forward.nodes, forward.logits)
        if streams is None or forward.hidden is None:
            for number, (head, features) in enumerate(self._read_by_heads()):
                plan, tree, result = inputs.plans[number], trees[number], results[number]
                features = tuple(rows[: len(tree)] for rows in features)
                verified = result.predictions, result.last, tree
                head.follow(accepted_rows(features, each[number], *verified))
                if plan.place == "head" and plan.width:
                    rank = _ranking(rules[number], tree, each[number], result, plan.width)
                    guessed = StreamResult(*head.guess(rank, plan.expand, plan.width))
                    results[number] = replace(result, streams=guessed)
            return results
        if not plan.width:  # shared streams run all the same: the main stream sees them
            return results
        last = mx.stack([result.last for result in results])[:, None]
        hidden, present = _streams_of(forward.hidden, plan.streams, last, inputs.stream_nodes)
        sequences = zip(rules, trees, each, results, strict=True)
        ranks = [_ranking(*sequence, plan.width) for sequence in sequences]
        guesses = self._guesses(streams, ranks, results, hidden, plan, present)
        return [
            result if adapter.streams is None else replace(result, streams=guessed)
            for result, guessed, adapter in zip(results, guesses, self._adapters, strict=True)
        ]

    def commit(self, paths: Sequence[Sequence[int]], kept_paths: Sequence[Sequence[int]]) -> None:
        """The seventh move: accepted rows go to the front of the KV cache, the others are dropped.

        ``paths`` are the indices of each sequence's accepted nodes in its tree, root first,
        ``kept_paths`` those of the same nodes among the kept ones.
        """
        first = self._first_msa_layer
        move = None if self.compiled is None else self.compiled.move
        commit(self.uncommitted[:first], paths, move)
        commit(self.uncommitted[first:], kept_paths, move)
        for head, path in zip(self._heads, paths, strict=bool(self._heads)):
            head.commit(len(path))

    # Parts of a step ----------------------------------------------------------------------------

    def _new_rows(self, rows: Rows) -> list[UncommittedRows]:
        self.uncommitted = [UncommittedRows(cache, rows) for cache in self.caches]
        return list(self.uncommitted)

    def _head(self, main: mx.array, sizes: Sequence[int]) -> list[mx.array]:
        """Compute each sequence's logits (nodes, vocab), padding left out."""
        if min(sizes) == main.shape[1]:
            return _of_each(self.model.head(main), sizes)
        packed = mx.concatenate(_of_each(main, sizes))
        ends = np.cumsum(sizes)[:-1].tolist()
        return list(mx.split(self.model.head(packed[None])[0], ends))

    def _verified(
        self,
        rules: Sequence[VerifyRule],
        trees: Sequence[DraftTree],
        nodes: TreeNodes,
        logits: Sequence[mx.array],
    ) -> tuple[list[TreeNodes], list[StepResult]]:
        """Verify each tree under its sequence's rule; also returns each tree's kept nodes."""
        each = [nodes.of(number, len(rows)) for number, rows in enumerate(logits)]
        judged = [rule.verify(trees[n], each[n], logits[n]) for n, rule in enumerate(rules)]
        lasts, predictions, processed = zip(*judged, strict=True)
        decided = self._shared([*lasts, *predictions])
        results = [
            StepResult(decided[n], decided[len(each) + n], processed[n], tree.kept, tree.in_play)
            for n, tree in enumerate(each)
        ]
        return each, results

    def _shared(self, decisions: Sequence[mx.array]) -> list[mx.array]:
        """Replace arrays of one dtype by those of rank 0, in one reduction."""
        if self._share is None:
            return list(decisions)
        sizes = np.cumsum([array.size for array in decisions])[:-1].tolist()
        parts = mx.split(
            self._share(mx.concatenate([array.flatten() for array in decisions])), sizes
        )
        return [part.reshape(array.shape) for part, array in zip(parts, decisions, strict=True)]

    def _guesses(
        self,
        streams: Streams,
        ranks: Sequence[Rank],
        results: Sequence[StepResult],
        hidden: mx.array,
        plan: Plan,
        present: mx.array | None,
    ) -> list[StreamResult]:
        """Let the streams (sequences, count, h) of the last accepted nodes guess."""
        model, ids, numbers = self.model, streams.vocabulary, range(len(results))
        is_present = [None if present is None else present[number] for number in numbers]

        def candidates(
            logits: mx.array, ids: mx.array | None, stream: int | None
        ) -> list[tuple[mx.array, mx.array]]:
            columns = [ids if ids is None or ids.ndim == 1 else ids[n] for n in numbers]
            return [rank(logits[n], columns[n], stream) for n, rank in enumerate(ranks)]

        if streams.head is None:
            logits = without_barred(model.stream_head(hidden), streams.barred)
            pairs = candidates(logits, ids, None)
            return [StreamResult(*pairs[n], None, logits[n], is_present[n]) for n in numbers]
        # In shared mode more streams may run than a tree has depths; those guess nothing.
        hidden = hidden[:, : len(plan.expand) + 1]
        token = mx.stack([result.predictions[result.last] for result in results])
        short = self._shortlists
        if short is None:
            whole_logits = results[0].logits
            assert whole_logits is not None
            short = (whole_logits.shape[-1] if ids is None else ids.size) > WHOLE_HEAD
        scorer = Scorer(model, streams, hidden, token, short)

        def of_stream(stream: int, before: mx.array, _: mx.array) -> tuple[mx.array, mx.array]:
            pairs = candidates(*scorer.logits(stream, before), stream)
            tokens, log_probs = zip(*pairs, strict=True)
            return mx.stack(list(tokens)), mx.stack(list(log_probs))

        tokens, log_probs, parents = guess(of_stream, token, plan.expand, plan.width)
        whole = scorer.of_first_paths()
        after_first = [None if whole is None else whole[n] for n in numbers]
        return [
            StreamResult(tokens[n], log_probs[n], parents[n], after_first[n], is_present[n])
            for n in numbers
        ]

    def _read_by_heads(self) -> list[tuple[DraftHead, tuple[mx.array, ...]]]:
        if not self._heads:
            return []
        features = self.model.take_features()
        return [(head, tuple(rows[n] for rows in features)) for n, head in enumerate(self._heads)]


def _ranking(
    rule: VerifyRule, tree: DraftTree, nodes: TreeNodes, result: StepResult, width: int
) -> Rank:
    end = PathEnd(tree, nodes.positions[result.last] - nodes.positions[0])
    return lambda logits, ids, stream: rule.rank_guesses(logits, width, end, ids, stream)


def _of_each(array: mx.array, sizes: Sequence[int]) -> list[mx.array]:
    whole = array.shape[1]
    return [array[n] if size == whole else array[n, :size] for n, size in enumerate(sizes)]


def _nodes_with_streams(plan: Plan, trees: Sequence[DraftTree]) -> list[list[int]] | None:
    """Choose the nodes of each tree that have streams, as many in all trees; ``None``: all."""
    few, most = plan.stream_nodes, max(map(len, trees))
    if few is None or few >= most:
        return None
    chosen = [tree.likeliest_last(min(few, len(tree))).tolist() for tree in trees]
    return [[*nodes, *range(len(nodes), few)] for nodes in chosen]


def _streams_of(
    streams: mx.array, count: int, last: mx.array, stream_nodes: mx.array | None
) -> tuple[mx.array, mx.array | None]:
    """Select the accepted nodes' streams (sequences, count, h), and say which are present."""
    streams = streams.reshape(len(streams), -1, count, streams.shape[-1])
    if stream_nodes is None:
        return at(streams, last)[:, 0], None
    is_last = stream_nodes == last
    place = mx.argmax(is_last, axis=1, keepdims=True)
    return at(streams, place)[:, 0], is_last.any(axis=1)
