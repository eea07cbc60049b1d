"""Drives an unmodified mlx-lm model through one decoding step: verify a tree, draft the next.

The model's own ``__call__`` runs embedding, layers, final norm and head; for the length of one
pass its list of layers is swapped for thin stand-ins that prune, append the streams and hand in
another mask. Nothing in the model is changed afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

from . import verify
from .kv import UncommittedRows, commit
from .msa import Rows, SplitMLP, deferred_rows, stream_rows, value_rotation
from .pruning import keep_best, path_scores
from .streams import Streams
from .tree import DraftTree

StreamPlacement = Literal["beside", "deferred", "none"]
"""``beside`` every kept node, ``deferred`` to a pass for the accepted node (lossless), or none."""


class UnsupportedModelError(ValueError):
    """The model's structure is not one that this decoder can drive."""


@dataclass
class StepResult:
    """Device arrays of one step, not yet evaluated.

    Attributes:
        last: scalar, the last accepted node among the kept ones.
        kept: (m,) indices into the tree of the rows that reached the MSA layers.
        predictions: (m,) the target's arg-max after each kept node.
        candidates: (gamma, k) the streams' best next tokens at the accepted node, best first.
        log_probs: (gamma, k) their log-probabilities.
        logits: (m, vocab) of the main stream.
        stream_hidden: (gamma, h) of the accepted node after the last layer, before the norm.
    """

    last: mx.array
    kept: mx.array | None
    predictions: mx.array
    logits: mx.array
    candidates: mx.array | None = None
    log_probs: mx.array | None = None
    stream_hidden: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """What the host reads, to be evaluated together."""
        arrays = [self.last, self.kept, self.predictions, self.candidates, self.log_probs]
        return [array for array in arrays if array is not None]


class PositionedRope(nn.Module):
    """A layer's rotary embedding that also takes one absolute position per row."""

    def __init__(self, rope: nn.Module):
        super().__init__()
        self._rope = rope

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        if isinstance(offset, int):
            return self._rope(x, offset=offset)
        # mlx takes one offset per batch row: make every row a batch of its own.
        return self._rope(x.swapaxes(0, 2), offset=offset).swapaxes(0, 2)


class _Through:
    """Stands in for a layer: ``function(hidden) -> hidden``."""

    def __init__(self, function: Callable[[mx.array], mx.array]):
        self._function = function

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return self._function(hidden)


class Decoder:
    """One model, its streams and its KV caches; the state of one generation.

    Args:
        model: an mlx-lm model (LoRA and quantized layers included).
        streams: the streams of the mounted adapter, or ``None``.
        caches: one mlx-lm ``KVCache`` per layer.
        main_sees_streams: Eq. 3; ``True`` for shared mode.

    Raises:
        UnsupportedModelError: no list of layers, or a layer without a rotary embedding.
    """

    def __init__(self, model: nn.Module, streams: Streams | None, caches: Sequence[Any]):
        self.model, self.streams, self.caches = model, streams, list(caches)
        layers = model.layers
        owners = [m for _, m in model.named_modules() if m.get("layers") is layers]
        if not owners:
            raise UnsupportedModelError("the model does not hold its layers in one list")
        self._owner, self._layers = owners[0], list(layers)
        self._attentions = []
        for number, layer in enumerate(self._layers):
            attention = next((m for m in layer.children().values() if "rope" in m), None)
            if attention is None or "mlp" not in layer:
                raise UnsupportedModelError(f"layer {number} has no attention with rope and an mlp")
            self._attentions.append(attention)
        self._ropes = [PositionedRope(attention["rope"]) for attention in self._attentions]
        self._shared = streams is not None and streams.config.mode == "shared"

    # One pass -----------------------------------------------------------------------------

    @contextmanager
    def _swapped(self, stand_ins: Sequence[Any]) -> Iterator[None]:
        """Within: the model's layers are ``stand_ins`` and its ropes take row positions."""
        before = self._owner["layers"]
        ropes = [attention["rope"] for attention in self._attentions]
        self._owner["layers"] = stand_ins
        for attention, rope in zip(self._attentions, self._ropes, strict=True):
            attention["rope"] = rope
        try:
            yield
        finally:
            self._owner["layers"] = before
            for attention, rope in zip(self._attentions, ropes, strict=True):
                attention["rope"] = rope

    def _run(self, tokens: mx.array, stand_ins: Sequence[Any], caches: Sequence[Any]) -> mx.array:
        """(1, rows, vocab) logits of the model with its layers replaced."""
        with self._swapped(stand_ins):
            return self.model(tokens[None], cache=caches)

    def head(self, hidden: mx.array) -> mx.array:
        """Final norm and LM head of (rows, h): (rows, vocab)."""
        dummy = mx.zeros((hidden.shape[0],), mx.int32)
        inject = _Through(lambda _: hidden[None])
        return self._run(dummy, [inject], self.caches)[0]

    def _early_exit_logits(self, hidden: mx.array) -> mx.array:
        """(rows, vocab) logits of the early-exit pruner at the first MSA layer (section 3.3)."""
        mapped = self.streams.pruner(hidden)
        if self.streams.config.pruner_form == "residual":
            return self.head(hidden + mapped)
        norm = self._owner["norm"]
        self._owner["norm"] = nn.Identity()
        try:
            return self.head(mapped)
        finally:
            self._owner["norm"] = norm

    def _msa_layer(
        self, number: int, hidden: mx.array, rows: Rows, main_rows: int, skip: int = 0
    ) -> mx.array:
        """One MSA layer over (1, rows, h), main rows first."""
        config = self.streams.config
        layer, cache = self._layers[number], self.caches[number]
        rotate = None
        if config.stream_init == "value_rotation" and hidden.shape[1] > main_rows:
            rotate = value_rotation(main_rows, config.num_streams, config.value_rotation_epsilon)
        proxy = UncommittedRows(cache, rows, skip, rotate)
        mask = proxy.make_mask(hidden.shape[1])
        if config.stream_mlp == "base":
            return layer(hidden, mask, cache=proxy)
        mlp = layer["mlp"]
        layer["mlp"] = SplitMLP(mlp, main_rows, lambda x: self.streams.stream_mlp(number, mlp, x))
        try:
            return layer(hidden, mask, cache=proxy)
        finally:
            layer["mlp"] = mlp

    # One step -----------------------------------------------------------------------------

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,) without streams."""
        self.model(tokens[None], cache=self.caches)

    def step(
        self,
        tree: DraftTree,
        placement: StreamPlacement,
        width: int = 1,
        max_nodes: int | None = None,
        threshold: float | None = None,
    ) -> StepResult:
        """Verify ``tree`` against the target and draft from the accepted node's streams.

        Args:
            tree: its root is the newest committed token, which is not in the KV cache yet.
            placement: where the streams run; ``beside`` in shared mode.
            width: k, candidates per stream.
            max_nodes: nodes kept by early-exit pruning; ``None`` or at least the tree's size
                keeps all.
            threshold: see ``pruning.path_scores``.

        Returns:
            Unevaluated arrays; read them, then call ``commit``.
        """
        offset = self.caches[0].offset
        n = len(tree)
        tokens = mx.array(tree.tokens)
        chain = tree.is_chain
        ancestors = mx.array(tree.ancestors)
        parents = mx.array(tree.parents)
        positions = offset + mx.array(tree.depths)
        rows = Rows(offset, None) if chain else Rows(positions, ancestors)
        prune = bool(max_nodes and max_nodes < n) or (threshold is not None and n > 1)
        if not prune and placement != "beside":
            return self._step_main_first(
                tree, tokens, parents, ancestors, positions, rows, placement, width
            )

        first = self.streams.config.first_msa_layer
        gamma = self.streams.config.num_streams if placement == "beside" else 0
        keep = min(max_nodes or n, n)
        state: dict[str, Any] = {"kept": None, "in_play": None}

        def enter(hidden: mx.array) -> mx.array:
            main = hidden[0]
            if prune:
                scores = path_scores(
                    self._early_exit_logits(main), tokens, parents, ancestors, threshold
                )
                kept, in_play = keep_best(scores, keep)
                main = main[kept]
                new_index = mx.zeros((n,), mx.int32)
                new_index[kept] = mx.arange(keep, dtype=mx.int32)
                state.update(
                    kept=kept,
                    in_play=in_play,
                    tokens=tokens[kept],
                    parents=new_index[mx.maximum(parents[kept], 0)],
                    ancestors=ancestors[kept][:, kept],
                    positions=positions[kept],
                )
            else:
                state.update(
                    tokens=tokens, parents=parents, ancestors=ancestors, positions=positions
                )
            state["entry"] = main
            if not gamma:
                state["rows"] = Rows(state["positions"], state["ancestors"])
                return main[None]
            state["rows"] = stream_rows(
                state["positions"], state["ancestors"], gamma, self._shared
            )
            seeds = self.streams.seed(main).reshape(keep * gamma, -1)
            return mx.concatenate([main, seeds])[None]

        def msa(number: int) -> Callable[[mx.array], mx.array]:
            def run(hidden: mx.array) -> mx.array:
                if number == first:
                    hidden = enter(hidden)
                hidden = self._msa_layer(number, hidden, state["rows"], keep)
                if number == len(self._layers) - 1 and gamma:
                    state["streams"] = hidden[0, keep:].reshape(keep, gamma, -1)
                    hidden = hidden[:, :keep]
                return hidden

            return run

        proxies = [UncommittedRows(cache, rows) for cache in self.caches]
        stand_ins = [*self._layers[:first]]
        stand_ins += [_Through(msa(number)) for number in range(first, len(self._layers))]
        logits = self._run(tokens, stand_ins, proxies)[0]
        predictions = mx.argmax(logits, axis=-1)
        last = verify.greedy(
            state["tokens"], state["parents"], state["ancestors"], predictions, state["in_play"]
        )
        result = StepResult(last, state["kept"], predictions, logits)
        if placement == "deferred":
            self._deferred(
                result, state["entry"], state["ancestors"], state["positions"], width, chain=False
            )
        elif gamma:
            self._draft(result, state["streams"][last], width)
        return result

    def commit(self, path: Sequence[int], kept_path: Sequence[int]) -> None:
        """Commit the accepted rows.

        Args:
            path: the accepted nodes' indices in the tree, root first.
            kept_path: their indices among the kept nodes.
        """
        first = self.streams.config.first_msa_layer if self.streams else len(self.caches)
        commit(self.caches[:first], path)
        commit(self.caches[first:], kept_path)
