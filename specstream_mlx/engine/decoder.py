"""Drives an unmodified mlx-lm model through one decoding step: verify a tree, draft the next.

The model's own ``__call__`` runs embedding, layers, final norm and head; for the length of one
pass its list of layers is swapped for thin stand-ins that prune, append the streams and hand in
another mask. Nothing in the model is changed afterwards. One thread at a time may do so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from ..drafting.settings import StreamPlacement
from ..drafting.tree import DraftTree
from ..hardware.cpu.rotations import shared_rotations
from ..models.architectures import architecture_of
from ..models.streams import Streams
from .kv import UncommittedRows, commit
from .msa import Rows, SplitMLP, deferred_rows, value_rotation
from .msa_pass import MsaPass
from .profile import NO_PROFILE, Profile
from .stand_ins import PositionedRope, Through
from .step_result import StepResult
from .structure import UnsupportedModelError, attention_with_rope, layers_lock, layers_owner
from .tree_nodes import TreeNodes, shape_tables
from .verify_rules import VerifyRule


class Decoder:
    """One model, its streams and its KV caches; the state of one generation.

    Args:
        model: an mlx-lm model (LoRA and quantized layers included).
        streams: the streams of the mounted adapter, or ``None``.
        caches: one per layer, from ``kv.make_caches``. Between two steps quantized ones may take
            their places in the decoder's own list, ``caches``.
        profile: told where the parts of a step end.

    Raises:
        UnsupportedModelError: no list of layers, a layer without a rotary embedding that takes
            any positions where positions are not learned, or a cache of another kind.
    """

    def __init__(
        self,
        model: nn.Module,
        streams: Streams | None,
        caches: Sequence[Any],
        profile: Profile = NO_PROFILE,
    ):
        self.model, self.streams, self.caches = model, streams, list(caches)
        self.profile = profile
        self._architecture = architecture_of(getattr(model, "model_type", None))
        self._windowed = any(hasattr(cache, "window") for cache in caches)
        with layers_lock:
            self._inspect()

    def _inspect(self) -> None:
        self._owner, self.layers = layers_owner(self.model), list(self.model.layers)
        config = self.streams and self.streams.config
        norm = self._architecture.norm
        if config and config.pruner_form == "literal" and norm not in self._owner:
            raise UnsupportedModelError(
                f"the model has no {norm} beside its layers, which a pruner_form of 'literal' skips"
            )
        self._attentions = []
        for number, layer in enumerate(self.layers):
            if not isinstance(self.caches[number], KVCache | QuantizedKVCache):
                raise UnsupportedModelError(
                    f"layer {number} has a {type(self.caches[number]).__name__}, "
                    "expected a KVCache or a QuantizedKVCache"
                )
            if config and config.stream_mlp != "base" and "mlp" not in layer:
                raise UnsupportedModelError(
                    f"layer {number} has no mlp, which a stream_mlp of {config.stream_mlp!r} takes "
                    "the place of"
                )
            if self._architecture.positions == "rope":
                self._attentions.append(attention_with_rope(number, layer))
        ropes = [attention["rope"] for attention in self._attentions]
        self._ropes = list(map(PositionedRope, ropes, shared_rotations(ropes)))
        self._uncommitted: list[UncommittedRows] = []

    # One pass -----------------------------------------------------------------------------

    def lower_layers(self, end: int) -> list[Any]:
        """The layers below ``end``, each with the mask of its own rows and window.

        mlx-lm makes one mask for several layers, of which some have no window to it.
        """
        if not self._windowed:
            return self.layers[:end]
        return [Through(self.layers[n], partial(self._with_own_mask, n)) for n in range(end)]

    def _with_own_mask(self, number: int, hidden: mx.array) -> mx.array:
        rows = self._uncommitted[number]
        mask = rows.make_mask(hidden.shape[1], self._architecture.array_masks)
        return self.layers[number](hidden, mask, cache=rows)

    @contextmanager
    def _swapped(self, stand_ins: Sequence[Any]) -> Iterator[None]:
        """Within: the model's layers are ``stand_ins`` and its ropes take row positions."""
        with layers_lock:
            before = self._owner["layers"]
            ropes = [attention["rope"] for attention in self._attentions]
            try:
                self._owner["layers"] = stand_ins
                for attention, rope in zip(self._attentions, self._ropes, strict=True):
                    attention["rope"] = rope
                yield
            finally:
                self._owner["layers"] = before
                for attention, rope in zip(self._attentions, ropes, strict=True):
                    attention["rope"] = rope

    def run(self, tokens: mx.array, stand_ins: Sequence[Any], caches: Sequence[Any]) -> mx.array:
        """(1, rows, vocab) logits of the model with its layers replaced; several sequences' too."""
        with self._swapped(stand_ins):
            return self.model(tokens if tokens.ndim == 2 else tokens[None], cache=caches)

    def head(self, hidden: mx.array) -> mx.array:
        """Final norm and LM head of (rows, h): (rows, vocab)."""
        dummy = mx.zeros((hidden.shape[0],), mx.int32)
        inject = Through(self.layers[0], lambda _: hidden[None])
        return self.run(dummy, [inject], self.caches)[0]

    def early_exit_logits(self, hidden: mx.array) -> mx.array:
        """(rows, vocab) logits of the early-exit pruner at the first MSA layer (section 3.3)."""
        mapped = self.streams.pruner(hidden)
        if self.streams.config.pruner_form == "residual":
            return self.head(hidden + mapped)
        name = self._architecture.norm
        norm = self._owner[name]
        self._owner[name] = nn.Identity()
        try:
            return self.head(mapped)
        finally:
            self._owner[name] = norm

    def _main_logits(self, tokens: mx.array, rows: Rows) -> mx.array:
        """(rows, vocab) logits of a pass without streams or pruning."""
        proxies = self.new_rows(rows)
        layers = self.lower_layers(len(proxies))
        layers[-1] = self.profile.after("MHA rows", layers[-1])
        logits = self.run(tokens, layers, proxies)[0]
        self.profile.border("head", logits)
        return logits

    def new_rows(self, rows: Rows) -> list[UncommittedRows]:
        """Stand-ins for all layers' caches in a pass over ``rows``, for ``commit`` to commit."""
        self._uncommitted = [UncommittedRows(cache, rows) for cache in self.caches]
        return list(self._uncommitted)

    def msa_layer(
        self, number: int, hidden: mx.array, rows: Rows, main_rows: int, skip: int = 0
    ) -> mx.array:
        """One MSA layer over (1, rows, h), main rows first."""
        config = self.streams.config
        layer, cache = self.layers[number], self.caches[number]
        rotate = None
        if config.stream_init == "value_rotation" and hidden.shape[1] > main_rows:
            rotate = value_rotation(main_rows, config.num_streams, config.value_rotation_epsilon)
        proxy = UncommittedRows(cache, rows, skip, rotate)
        if main_rows:
            self._uncommitted[number] = proxy
        mask = proxy.make_mask(hidden.shape[1], self._architecture.array_masks)
        if config.stream_mlp == "base":
            return layer(hidden, mask, cache=proxy)
        mlp = layer["mlp"]
        adapter = partial(self.streams.stream_adapter, number)
        layer["mlp"] = SplitMLP(mlp, main_rows, adapter, config.stream_mlp == "base+adapter")
        try:
            return layer(hidden, mask, cache=proxy)
        finally:
            layer["mlp"] = mlp

    # One step -----------------------------------------------------------------------------

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,) without streams."""
        rows = self.new_rows(Rows(self.caches[0].offset, None))
        self.run(tokens, self.lower_layers(len(rows)), rows)
        commit(rows, range(tokens.size))
        self._uncommitted = []  # else the prompt's keys and values stay in memory twice

    def step(
        self,
        tree: DraftTree,
        placement: StreamPlacement,
        width: int = 1,
        max_nodes: int | None = None,
        threshold: float | None = None,
        rule: VerifyRule | None = None,
        stream_nodes: int | None = None,
    ) -> StepResult:
        """Verify ``tree`` against the target and draft from the accepted node's streams.

        Args:
            tree: its root is the newest committed token, which is not in the KV cache yet.
            placement: where the streams run; always ``beside`` in shared mode.
            width: k, candidates per stream; 0: nothing is to be drafted.
            max_nodes: nodes kept by early-exit pruning; ``None`` keeps all.
            threshold: see ``pruning.path_scores``.
            rule: of this generation; greedy by default.
            stream_nodes: with ``beside`` in lossless mode, without pruning: run the streams beside
                so many nodes only, see ``tree.DraftTree.likeliest_last``.

        Returns:
            Unevaluated arrays; read them, then call ``commit``.
        """
        rule = rule or VerifyRule()
        offset = self.caches[0].offset
        shape = tree.parents.tobytes(), tree.depths.tobytes(), len(tree)
        parents, depths, ancestors = shape_tables(*shape)
        nodes = TreeNodes(mx.array(tree.tokens), parents, ancestors, offset + depths)
        rows = Rows(offset, None) if tree.is_chain else Rows(nodes.positions, ancestors)
        if placement == "none":
            return self._verified(rule, tree, nodes, self._main_logits(nodes.tokens, rows))

        chosen = None
        if self.streams.config.mode == "shared":
            stream_nodes = None  # which would be another function: DESIGN's shared-mode contract
        if stream_nodes is not None and stream_nodes < len(tree):
            chosen = tree.likeliest_last(stream_nodes).tolist()
        beside = placement == "beside"
        run = MsaPass(self, nodes, rows, shape, beside, max_nodes, threshold, chosen)
        logits = run.logits()
        self.profile.border("head", logits)
        result = self._verified(rule, tree, run.nodes, logits)
        if not width:
            return result
        if beside:
            hidden, result.has_streams = run.streams_of(result.last)
            result.stream_logits = self.head(hidden)
        else:
            result.stream_logits = self._deferred_logits(run, result.last)
        result.candidates, result.log_probs = rule.draft(result.stream_logits, width)
        self.profile.border("head", result.candidates, result.log_probs)
        return result

    def _verified(
        self, rule: VerifyRule, tree: DraftTree, nodes: TreeNodes, logits: mx.array
    ) -> StepResult:
        verdict = rule.verify(tree, nodes, logits)
        self.profile.border("verify", verdict.last, verdict.predictions)
        last, predictions = verdict.last, verdict.predictions
        return StepResult(last, nodes.kept, nodes.in_play, predictions, verdict.logits)

    def next_token(self, token: mx.array, rule: VerifyRule) -> StepResult:
        """Plain decoding: commit ``token`` (1,), which may be unevaluated, and predict the next.

        Streams do not run. Since nothing here waits for the device, calls may be enqueued ahead.
        """
        logits = self._main_logits(token, Rows(self.caches[0].offset, None))
        commit(self._uncommitted, range(1))
        predictions, logits = rule.next_token(logits)
        self.profile.border("verify", predictions)
        return StepResult(mx.array(0), None, None, predictions, logits)

    def uncommit(self, count: int) -> None:
        """Take the last ``count`` rows back."""
        for cache in self.caches:
            cache.trim(count)

    def _deferred_logits(self, run: MsaPass, last: mx.array) -> mx.array:
        """(gamma, vocab) logits of the accepted node's streams, run after the verification."""
        nodes, config = run.nodes, self.streams.config
        rows = deferred_rows(last, nodes.positions, nodes.ancestors, config.num_streams)
        seeds = self.streams.seed(run.entry[last][None])
        first = config.first_msa_layer

        def msa(number: int, hidden: mx.array) -> mx.array:
            hidden = seeds if number == first else hidden
            return self.msa_layer(number, hidden, rows, main_rows=0, skip=len(nodes))

        stand_ins = [
            Through(self.layers[number], partial(msa, number))
            for number in range(first, config.num_hidden_layers)
        ]
        stand_ins[-1] = self.profile.after("MSA rows", stand_ins[-1])
        dummy = mx.zeros((config.num_streams,), mx.int32)
        return self.run(dummy, stand_ins, self.caches)[0]

    def commit(self, path: Sequence[int], kept_path: Sequence[int]) -> None:
        """Commit the accepted rows.

        Args:
            path: the accepted nodes' indices in the tree, root first.
            kept_path: their indices among the kept nodes.
        """
        first = self.streams.config.first_msa_layer if self.streams else len(self.caches)
        commit(self._uncommitted[:first], path)
        commit(self._uncommitted[first:], kept_path)
