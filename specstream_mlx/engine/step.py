"""One decoding step: verify the tree that was drafted, and guess the next one.

The seven moves of Speculative Streaming (arXiv 2402.11131, section 3): embed the nodes, MHA layers,
prune, seed the streams, MSA layers, verify and let the streams guess, commit. The first six stand
top to bottom in ``Decoder.step``, which only enqueues; the host then reads which nodes were
accepted, and ``Decoder.commit`` is the seventh.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from ..models.streams import Streams
from .borrowed_model import BorrowedModel, Observer, UnsupportedModelError
from .guesses import NO_GUESSES, StreamGuesses
from .guessing import Shortlists, WholeHead, guess
from .key_selection import AskingRows, KeySelection, SelectingRows
from .kv import UncommittedRows, commit
from .plan import Plan
from .profile import NO_PROFILE, Profile
from .prune import keep_best, path_scores
from .rows import Rows, TreeNodes, TreeShape, deferred_rows, rows_with_streams, shape_of
from .tree import DraftTree
from .verify.rule import VerifyRule

WHOLE_HEAD = 4096
"""Tokens that may be drafted, up to which conditioned heads score all of them behind every path."""


@dataclass(frozen=True, eq=False)
class StreamResult:
    """What the streams of the last accepted node guess: device arrays, not yet evaluated.

    Of several sequences all have a leading axis for them.

    Attributes:
        candidates: (streams, k) the tokens of the streams that ran, best first, or in the order in
            which they were drawn; (streams, paths, k) of streams that know the token before.
        log_probs: of the same shape, their log-probabilities in nats.
        parents: (streams, paths) of streams that know the token before, see ``StreamGuesses``.
        logits: (streams, n) of the tokens that may be drafted; those of streams that know the token
            before are behind the first of their paths, and ``None`` where only shortlists were
            scored.
        present: scalar bool, whether the accepted node has streams; if not, the other arrays mean
            nothing. ``None``: every node has.
    """

    candidates: mx.array
    log_probs: mx.array
    parents: mx.array | None = None
    logits: mx.array | None = None
    present: mx.array | None = None


@dataclass(frozen=True, eq=False)
class StepResult:
    """Device arrays of one step, not yet evaluated.

    Of several sequences with trees of one shape, all but ``kept`` and ``in_play`` have a leading
    axis for them, and the methods, which read one sequence, do not apply.

    Attributes:
        last: scalar, the last accepted node among the kept ones.
        predictions: (m,) the target's token after each kept node, as the verify rule has it.
        logits: (m, vocab) of the main stream, after the logits processors; ``None`` from a decoder
            that returns the arg-maxes alone.
        kept: (m,) indices into the tree of the kept nodes; ``None``: all of them.
        in_play: (m,) which kept nodes may be accepted: nodes below ``prune_threshold`` fill up the
            places that pruning has left, since shapes are fixed. ``None``: all of them.
        streams: what the streams guess; ``None``: they guess nothing.
    """

    last: mx.array
    predictions: mx.array
    logits: mx.array | None
    kept: mx.array | None = None
    in_play: mx.array | None = None
    streams: StreamResult | None = None

    def guesses(self) -> StreamGuesses:
        """What the streams guess, on the host; nothing where no streams ran."""
        found = self.streams
        if found is None or (found.present is not None and not found.present.item()):
            return NO_GUESSES
        parents = None if found.parents is None else np.array(found.parents)
        return StreamGuesses(np.array(found.candidates), np.array(found.log_probs), parents)

    def accepted(self, tree: DraftTree) -> tuple[int, list[int], list[int]]:
        """Number of tested nodes, and the accepted path, by index in the tree and in the kept."""
        last = self.last.item()
        if self.kept is None:
            path = tree.path(last)
            return len(tree), path, path
        kept = np.array(self.kept).tolist()
        path = tree.path(kept[last])
        return int(np.array(self.in_play).sum()), path, [kept.index(node) for node in path]

    def prediction(self) -> int:
        """The target's own token behind the accepted path: the correction or bonus token."""
        return int(np.array(self.predictions)[self.last.item()])

    def arrays(self) -> list[mx.array]:
        """The arrays that the host will read, so that they can be evaluated together."""
        arrays = [self.last, self.predictions, self.kept, self.in_play]
        if (found := self.streams) is not None:
            arrays += [found.candidates, found.log_probs, found.parents, found.present]
        return [array for array in arrays if array is not None]


class Decoder:
    """One model, its streams and its KV caches: the state of one generation.

    Args:
        model: an mlx-lm model (LoRA and quantized layers included); it is never changed.
        streams: the streams of the mounted adapter, or ``None``.
        caches: one per layer, from ``kv.make_caches``, or ``kv.StackedKVCache`` of several
            sequences. Between two steps quantized ones may take their places in the decoder's own
            list, ``caches``.
        profile: told where the parts of a step end.
        observe: see ``BorrowedModel``.
        shortlists: whether streams that know the token before score ``guessing.Shortlists`` alone;
            ``None``: where more tokens than ``WHOLE_HEAD`` may be drafted.

    Raises:
        UnsupportedModelError: the model cannot be run in pieces, or a cache is of another kind.
    """

    def __init__(
        self,
        model: nn.Module,
        streams: Streams | None,
        caches: Sequence[Any],
        profile: Profile = NO_PROFILE,
        observe: Observer | None = None,
        shortlists: bool | None = None,
    ):
        self.streams, self.caches, self.profile = streams, list(caches), profile
        self._shortlists = shortlists
        for number, cache in enumerate(caches):
            if not isinstance(cache, KVCache | QuantizedKVCache):
                raise UnsupportedModelError(
                    f"layer {number} has a {type(cache).__name__}, "
                    "expected a KVCache or a QuantizedKVCache"
                )
        windowed = any(hasattr(cache, "window") for cache in caches)
        self.model = BorrowedModel(model, streams, windowed, profile, observe)
        self._uncommitted: list[UncommittedRows] = []

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,) without streams."""
        self.model.fill(tokens[None], self._new_rows(Rows(self.caches[0].offset, None)))
        commit(self._uncommitted, range(tokens.size))
        self._uncommitted = []  # else the prompt's keys and values stay in memory twice

    def next_token(self, token: mx.array, rule: VerifyRule) -> StepResult:
        """Plain decoding: commit ``token`` (1,), which may be unevaluated, and predict the next.

        Streams do not run. Since nothing here waits for the device, calls may be enqueued ahead.
        """
        logits = self._main_logits(token[None], Rows(self.caches[0].offset, None))[0]
        self.profile.border("head", logits)
        commit(self._uncommitted, range(1))
        predictions, logits = rule.next_token(logits)
        self.profile.border("verify", predictions)
        return StepResult(mx.array(0), predictions, logits)

    def uncommit(self, count: int) -> None:
        """Take the last ``count`` rows back."""
        for cache in self.caches:
            cache.trim(count)

    def step(self, plan: Plan, rule: VerifyRule) -> StepResult:
        """Verify the plan's tree against the target and let the accepted node's streams guess.

        Args:
            plan: of a model without streams, ``place`` is ``none`` or ``plain``.
            rule: of this generation.

        Returns:
            Unevaluated arrays; read them, then call ``commit``.
        """
        profile, tree, count = self.profile, plan.tree, plan.streams

        # 1. Embed the nodes; a node's position is that of the root plus its depth.
        shape, offset = shape_of(tree), self.caches[0].offset
        single = tree.tokens.ndim == 1  # sequence; else the offsets are several too
        positions = (offset if single else offset[:, None]) + shape.depths
        nodes = TreeNodes(mx.array(tree.tokens), shape.parents, shape.ancestors, positions)
        tokens = nodes.tokens[None] if single else nodes.tokens
        rows = Rows(positions, nodes.ancestors)
        if single and shape.is_chain:
            rows = Rows(offset, None)
        if not plan.runs_streams:
            logits = self._main_logits(tokens, rows)
            return self._verified(rule, tree, nodes, logits)

        # 2. MHA layers, over the nodes alone.
        main = self.model.lower(tokens, self._new_rows(rows))
        profile.border("MHA rows", main)

        # 3. Prune by the early exit's scores.
        if plan.prunes:
            nodes, main = self._pruned(nodes, shape, main, plan)
            rows = Rows(nodes.positions, nodes.ancestors)

        # 4. Seed the streams beside the nodes; deferred ones are seeded behind verification.
        beside = None
        hidden = entry = main
        if plan.place == "beside":
            beside = self._nodes_with_streams(plan)
            seeded = main if beside is None else main[:, mx.array(beside)]
            seeds = self.streams.seed(seeded, count).flatten(1, 2)
            hidden = mx.concatenate([main, seeds], axis=1)
            shared = self.streams.config.mode == "shared"
            rows = rows_with_streams(nodes, shape, count, shared, beside)

        # 5. MSA layers, over nodes and streams.
        hidden = self._through_msa_layers(hidden, rows, count, len(nodes), beside=beside)
        main, streams = hidden, None
        if plan.place == "beside":
            main, streams = mx.split(hidden, [len(nodes)], axis=1)

        # 6. Head and verification; then the streams of the last accepted node.
        result = self._verified(rule, tree, nodes, self.model.head(main))
        if not plan.width:  # shared streams run all the same: the main stream sees them
            return result
        present = None
        if plan.place == "beside":
            hidden, present = _streams_of(streams, count, result.last, beside)
        else:
            rows = deferred_rows(nodes, result.last, count)
            hidden = self.streams.seed(_at(entry, result.last), count).flatten(1, 2)
            hidden = self._through_msa_layers(hidden, rows, count, 0, len(nodes), last=result.last)
        depths = shape.depths if nodes.kept is None else shape.depths[nodes.kept]
        found = self._guess(result, hidden, rule, depths[result.last], plan)
        profile.border("head", found.candidates, found.log_probs)
        return replace(result, streams=replace(found, present=present))

    def commit(self, path: Sequence[int], kept_path: Sequence[int]) -> None:
        """The seventh move: the accepted rows go into the KV cache, the others are dropped.

        Args:
            path: the accepted nodes' indices in the tree, root first.
            kept_path: their indices among the kept nodes.
        """
        first = self.streams.config.first_msa_layer if self.streams else len(self.caches)
        commit(self._uncommitted[:first], path)
        commit(self._uncommitted[first:], kept_path)

    # Parts of a step ----------------------------------------------------------------------------

    def _new_rows(self, rows: Rows) -> list[UncommittedRows]:
        """Stand-ins for all layers' caches in a pass over ``rows``.

        ``Decoder.commit`` commits what they hold. Where streams run, MSA layers get others, since
        they have other rows.
        """
        self._uncommitted = [UncommittedRows(cache, rows) for cache in self.caches]
        return list(self._uncommitted)

    def _main_logits(self, tokens: mx.array, rows: Rows) -> mx.array:
        """(sequences, rows, vocab) logits of a pass without streams or pruning."""
        return self.model.logits(tokens, self._new_rows(rows))

    def _pruned(
        self, nodes: TreeNodes, shape: TreeShape, main: mx.array, plan: Plan
    ) -> tuple[TreeNodes, mx.array]:
        """The nodes that go on to the MSA layers, and their (1, m, h) main stream."""
        inner, place = shape.inner
        logits = self.model.early_exit(main[:, inner])[0]
        scores = path_scores(logits, nodes.tokens, place, nodes.ancestors, plan.threshold)
        nodes = nodes.keep(*keep_best(scores, min(plan.keep or len(nodes), len(nodes))))
        main = main[:, nodes.kept]
        self.profile.border("pruning", main, nodes.ancestors, nodes.positions)
        return nodes, main

    def _nodes_with_streams(self, plan: Plan) -> list[int] | None:
        """The nodes beside which streams run; ``None``: all, as always in shared mode."""
        few, tree = plan.beside, plan.tree
        if self.streams.config.mode == "shared" or few is None or few >= len(tree):
            return None
        return tree.likeliest_last(few).tolist()

    def _through_msa_layers(
        self,
        hidden: mx.array,
        rows: Rows,
        count: int,
        main_rows: int,
        skip: int = 0,
        *,
        beside: Sequence[int] | None = None,
        last: mx.array | None = None,
    ) -> mx.array:
        """Main rows first, then stream rows, through all MSA layers.

        Args:
            hidden: (sequences, rows, h).
            rows: their positions and visibility.
            count: streams beside each node that has some.
            main_rows: how many are main rows, which may be committed later.
            skip: how many rows this step's first pass wrote behind the committed ones; these go
                behind them.
            beside: the main rows that have streams, if there are any streams; ``None``: all.
            last: () or (sequences,) the first pass's row that has streams, where they are deferred.
        """
        config = self.streams.config
        stream_rows = hidden.shape[1] - main_rows
        for number in range(config.first_msa_layer, config.num_hidden_layers):
            rotate = self.streams.value_rotation(main_rows, stream_rows, count)
            place = self.caches[number], rows, skip, rotate
            if not config.stream_keys:
                cache = UncommittedRows(*place)
            elif not stream_rows:
                cache = AskingRows(*place)
            else:
                asked = None
                if last is not None:
                    queries = self._uncommitted[number].queries
                    asked = _at(queries.swapaxes(1, 2), last).swapaxes(1, 2)
                selection = KeySelection(
                    count=config.stream_keys,
                    num_streams=count,
                    main=main_rows or skip,
                    beside=beside,
                    asked=asked,
                )
                cache = SelectingRows(*place, selection)
            if main_rows:
                self._uncommitted[number] = cache
            hidden = self.model.layer(number, hidden, cache, main_rows)
        self.profile.border("MSA rows", hidden)
        return hidden

    def _guess(
        self,
        result: StepResult,
        hidden: mx.array,
        rule: VerifyRule,
        depth: mx.array,
        plan: Plan,
    ) -> StreamResult:
        """What the streams of the last accepted node guess.

        Args:
            result: of this step.
            hidden: (sequences, count, h) the streams after the last layer.
            rule: of this generation.
            depth: (..) of the tree's last accepted node.
            plan: of the step.
        """
        tree, width = plan.tree, plan.width
        single = tree.tokens.ndim == 1
        head, ids = self.streams.head, self.streams.vocabulary
        if head is None:
            logits = self.model.stream_head(hidden)
            logits = logits[0] if single else logits
            tokens, log_probs = rule.draft(logits, width, tree, depth, ids=ids)
            return StreamResult(tokens, log_probs, logits=logits)
        # In shared mode streams run that no tree is deep enough for; they are asked about nothing.
        hidden = hidden[:, : len(plan.expand) + 1]
        last, predictions = result.last, result.predictions
        token = predictions[last][None] if single else _at(predictions, last)[:, 0]
        short = self._shortlists
        if short is None:
            short = (result.logits.shape[-1] if ids is None else ids.size) > WHOLE_HEAD
        kind = Shortlists if short else WholeHead
        scores = kind(self.model, head, hidden, token, ids)

        def of_stream(stream: int, before: mx.array) -> tuple[mx.array, mx.array]:
            logits, named = scores.logits(stream, before)
            if not single:
                return rule.draft(logits, width, tree, depth, stream, named)
            if named is not None and named.ndim == 2:
                named = named[0]
            tokens, log_probs = rule.draft(logits[0], width, tree, depth, stream, named)
            return tokens[None], log_probs[None]

        found = guess(of_stream, token, plan.expand, width)
        logits = scores.of_first_paths()
        if single:
            found, logits = [array[0] for array in found], None if logits is None else logits[0]
        return StreamResult(*found, logits=logits)

    def _verified(
        self, rule: VerifyRule, tree: DraftTree, nodes: TreeNodes, logits: mx.array
    ) -> StepResult:
        logits = logits[0] if nodes.tokens.ndim == 1 else logits
        self.profile.border("head", logits)
        last, predictions, logits = rule.verify(tree, nodes, logits)
        self.profile.border("verify", last, predictions)
        return StepResult(last, predictions, logits, nodes.kept, nodes.in_play)


def _at(array: mx.array, node: mx.array) -> mx.array:
    """(sequences, 1, ..) of an array (sequences, nodes, ..) at one node of each sequence."""
    if node.ndim == 0:
        return array[:, node[None]]
    return array[mx.arange(node.size), node][:, None]


def _streams_of(
    streams: mx.array, count: int, last: mx.array, beside: Sequence[int] | None
) -> tuple[mx.array, mx.array | None]:
    """The (sequences, count, h) streams beside the accepted node.

    Args:
        streams: (sequences, nodes * count, h) after the last layer.
        count: streams beside each node that has some.
        last: the accepted node among the kept ones.
        beside: the nodes that have some; ``None``: all.

    Returns:
        The streams, and whether they are the node's own: ``None`` where all nodes have some.
    """
    streams = streams.reshape(len(streams), -1, count, streams.shape[-1])
    if beside is None:
        return _at(streams, last)[:, 0], None
    found = mx.array(beside) == last
    return _at(streams, mx.argmax(found))[:, 0], found.any()
