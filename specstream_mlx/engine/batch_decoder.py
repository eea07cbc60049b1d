"""One decoding step of several sequences, each with a chain of drafts (arXiv 2402.11131, App. L).

With a batch rows are no longer cheap, so each sequence drafts its best path alone: the likeliest
token of every stream. All chains have the same length; how much of each is accepted differs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from ..drafting.settings import StreamPlacement
from ..loading import SpeculativeModel
from .batch_rows import BatchRows, StackedKVCache
from .decoder import Decoder
from .msa import stream_visibility
from .stand_ins import Through


@dataclass
class BatchStep:
    """Device arrays of one step, not yet evaluated.

    Attributes:
        predictions: (sequences, nodes) the target's token after each node.
        accepted: (sequences,) drafts that were right, and so the index of the last accepted node.
        drafts: (sequences, gamma) the streams' likeliest tokens there; ``None``: no streams ran.
    """

    predictions: mx.array
    accepted: mx.array
    drafts: mx.array | None = None


class BatchDecoder:
    """One model and the KV caches of several sequences.

    Args:
        model: base and adapter.
        caches: per sequence, one per layer: all tokens but the newest one.
        placement: where the streams run.
        depth: the most drafts of a sequence.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        caches: Sequence[Sequence[KVCache]],
        placement: StreamPlacement,
        depth: int,
    ):
        self._config = model.streams and model.streams.config
        self._placement = placement
        gamma = self._config.num_streams if placement != "none" else 0
        self._gamma, nodes = gamma, 1 + depth
        room = nodes * (1 + gamma) if placement == "beside" else nodes + gamma
        self._caches = [StackedKVCache(layer, room) for layer in zip(*caches, strict=True)]
        self._decoder = Decoder(model.model, model.streams, self._caches)
        self._lengths = [cache.offset for cache, *_ in caches]

    def commit(self, counts: Sequence[int]) -> None:
        """Commit so many of each sequence's new rows."""
        pairs = zip(self._lengths, counts, strict=True)
        self._set_lengths([length + count for length, count in pairs])

    def keep(self, sequences: Sequence[int]) -> None:
        """Go on with some of the sequences, at least one."""
        for cache in self._caches:
            cache.keep(sequences)
        self._set_lengths([self._lengths[number] for number in sequences])

    def _set_lengths(self, lengths: list[int]) -> None:
        self._lengths = lengths
        for cache in self._caches:
            cache.commit(lengths)

    def step(self, tokens: mx.array) -> BatchStep:
        """Verify each sequence's root and chain, and draft the next ones.

        Args:
            tokens: (sequences, nodes) int32, the root first.
        """
        logits, entry, streams = self._forward(tokens)
        predictions = mx.argmax(logits, axis=-1).astype(mx.int32)
        right = (tokens[:, 1:] == predictions[:, :-1]).astype(mx.int32)
        accepted = mx.cumprod(right, axis=1).sum(axis=1)
        if self._placement == "none":
            return BatchStep(predictions, accepted)
        last = accepted[:, None, None]
        if self._placement == "beside":
            hidden = _at(streams, last[..., None])
            stream_logits = self._decoder.head(hidden.reshape(-1, hidden.shape[-1]))
        else:
            stream_logits = self._deferred_logits(tokens.shape[1], _at(entry, last), accepted)
        drafts = mx.argmax(stream_logits, axis=-1).astype(mx.int32)
        return BatchStep(predictions, accepted, drafts.reshape(-1, self._gamma))

    def _forward(self, tokens: mx.array) -> tuple[mx.array, mx.array | None, mx.array | None]:
        """One pass over all chains.

        Returns:
            (sequences, nodes, vocab) logits, the main stream (sequences, nodes, h) at the first MSA
            layer, and the streams (sequences, nodes, gamma, h) after the last, where they ran.
        """
        decoder, nodes, gamma = self._decoder, tokens.shape[1], self._gamma
        positions = self._caches[0].offset[:, None] + mx.arange(nodes)
        chain = np.tri(nodes, dtype=bool)
        main = BatchRows(positions, mx.array(chain)[None], self._caches[0].columns)
        proxies = decoder.new_rows(main)
        if self._placement == "none":
            return decoder.run(tokens, decoder.lower_layers(len(proxies)), proxies), None, None
        first, end = self._config.first_msa_layer, self._config.num_hidden_layers
        rows, entry, streams = main, None, None
        if self._placement == "beside":
            sees = stream_visibility(chain, gamma, self._config.mode == "shared")
            beside = positions[..., None] + mx.arange(1, gamma + 1)
            every = mx.concatenate([positions, beside.reshape(len(positions), -1)], axis=1)
            rows = BatchRows(every, mx.array(sees)[None], main.columns)

        def msa(number: int, hidden: mx.array) -> mx.array:
            nonlocal entry, streams
            if number == first:
                entry = hidden
                if self._placement == "beside":
                    seeds = decoder.streams.seed(hidden.reshape(-1, hidden.shape[-1]))
                    seeds = seeds.reshape(len(hidden), nodes * gamma, -1)
                    hidden = mx.concatenate([hidden, seeds], axis=1)
            hidden = decoder.msa_layer(number, hidden, rows, nodes)
            if number == end - 1 and self._placement == "beside":
                streams = hidden[:, nodes:].reshape(len(hidden), nodes, gamma, -1)
                hidden = hidden[:, :nodes]
            return hidden

        stand_ins = decoder.lower_layers(first) + self._msa_layers(msa)
        return decoder.run(tokens, stand_ins, proxies), entry, streams

    def _msa_layers(self, msa: Callable[[int, mx.array], mx.array]) -> list[Through]:
        config = self._config
        numbers = range(config.first_msa_layer, config.num_hidden_layers)
        return [Through(self._decoder.layers[number], partial(msa, number)) for number in numbers]

    def _deferred_logits(self, nodes: int, entry: mx.array, accepted: mx.array) -> mx.array:
        """(sequences, gamma, vocab) logits of the accepted nodes' streams.

        Args:
            nodes: of each chain, whose rows lie before the streams'.
            entry: (sequences, h) the accepted nodes' main stream at the first MSA layer.
            accepted: (sequences,) their indices.
        """
        gamma, count = self._gamma, len(entry)
        positions = (self._caches[0].offset + accepted)[:, None] + mx.arange(1, gamma + 1)
        path = mx.arange(nodes) <= accepted[:, None]
        path = mx.broadcast_to(path[:, None], (count, gamma, nodes))
        earlier = mx.tri(gamma, dtype=mx.float32).astype(mx.bool_)
        earlier = mx.broadcast_to(earlier, (count, gamma, gamma))
        sees = mx.concatenate([path, earlier], axis=-1)
        rows = BatchRows(positions, sees, self._caches[0].columns)
        seeds = self._decoder.streams.seed(entry)

        def msa(number: int, hidden: mx.array) -> mx.array:
            hidden = seeds if number == self._config.first_msa_layer else hidden
            return self._decoder.msa_layer(number, hidden, rows, main_rows=0, skip=nodes)

        dummy = mx.zeros((count, gamma), mx.int32)
        return self._decoder.run(dummy, self._msa_layers(msa), self._caches)


def _at(array: mx.array, index: mx.array) -> mx.array:
    """(sequences, ..) of an array (sequences, nodes, ..) at one node of each sequence."""
    shape = (array.shape[0], 1, *array.shape[2:])
    return mx.take_along_axis(array, mx.broadcast_to(index, shape), axis=1)[:, 0]
