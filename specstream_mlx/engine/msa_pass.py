"""The pass over a tree that prunes and adds streams where the MSA layers begin."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import mlx.core as mx

from .msa import Rows, rows_with_streams
from .prune import keep_best, path_scores
from .stand_ins import Through
from .tree_nodes import TreeNodes, inner_tables, tree_visibility

if TYPE_CHECKING:
    from .decoder import Decoder


class MsaPass:
    """One pass over a tree's nodes that prunes and adds streams at the first MSA layer.

    Attributes:
        nodes: the nodes kept by pruning, once ``logits`` has run.
        entry: (m, h) their main stream at the first MSA layer.
        stream_hidden: (s, gamma, h) the streams after the last layer, of all kept nodes or those
            of ``stream_nodes``.
    """

    def __init__(
        self,
        decoder: "Decoder",
        nodes: TreeNodes,
        rows: Rows,
        shape: tuple[bytes, bytes, int],
        beside: bool,
        max_nodes: int | None,
        threshold: float | None,
        stream_nodes: Sequence[int] | None = None,
    ):
        self._decoder, self.nodes, self._rows, self._beside = decoder, nodes, rows, beside
        self._shape = shape
        self._keep = min(max_nodes or len(nodes), len(nodes))
        self._prunes = self._keep < len(nodes) or (threshold is not None and len(nodes) > 1)
        self._threshold = threshold
        self._chosen = None if stream_nodes is None else tuple(stream_nodes)
        self.entry: mx.array | None = None
        self.stream_hidden: mx.array | None = None

    def logits(self) -> mx.array:
        """Run the model; (m, vocab) logits of the kept nodes' main stream."""
        decoder = self._decoder
        config = decoder.streams.config
        proxies = decoder.new_rows(self._rows)
        stand_ins = decoder.lower_layers(config.first_msa_layer)
        for number in range(config.first_msa_layer, config.num_hidden_layers):
            stand_ins.append(Through(decoder.layers[number], partial(self._msa, number)))
        stand_ins[-1] = decoder.profile.after("MSA rows", stand_ins[-1])
        return decoder.run(self.nodes.tokens, stand_ins, proxies)[0]

    def streams_of(self, last: mx.array) -> tuple[mx.array, mx.array | None]:
        """The streams beside the accepted node.

        Args:
            last: scalar, the node among the kept ones.

        Returns:
            (gamma, h) after the last layer, and whether these are the node's own: a scalar bool,
            ``None`` where every node has streams.
        """
        if self._chosen is None:
            return self.stream_hidden[last], None
        found = mx.array(self._chosen) == last
        return self.stream_hidden[mx.argmax(found)], found.any()

    def _msa(self, number: int, hidden: mx.array) -> mx.array:
        config = self._decoder.streams.config
        if number == config.first_msa_layer:
            self._decoder.profile.border("MHA rows", hidden)
            hidden = self._enter(hidden[0])[None]
        hidden = self._decoder.msa_layer(number, hidden, self._rows, self._keep)
        if number == config.num_hidden_layers - 1 and self._beside:
            streams = hidden[0, self._keep :]
            self.stream_hidden = streams.reshape(-1, config.num_streams, streams.shape[-1])
            hidden = hidden[:, : self._keep]
        return hidden

    def _enter(self, hidden: mx.array) -> mx.array:
        """Prune the (n, h) rows and append the streams: (m + s * gamma, h)."""
        decoder, nodes = self._decoder, self.nodes
        config = decoder.streams.config
        if self._prunes:
            inner, parents = inner_tables(self._shape[0])
            logits = decoder.early_exit_logits(hidden[inner])
            scores = path_scores(logits, nodes.tokens, parents, nodes.ancestors, self._threshold)
            self.nodes = nodes = nodes.keep(*keep_best(scores, self._keep))
            self._rows = Rows(nodes.positions, nodes.ancestors)
            hidden = hidden[nodes.kept]
            decoder.profile.border("pruning", hidden, nodes.ancestors, nodes.positions)
        self.entry = hidden
        if not self._beside:
            return hidden
        gamma, shared = config.num_streams, config.mode == "shared"
        beside = None if self._chosen is None else mx.array(self._chosen)
        sees = tree_visibility(*self._shape, gamma, shared, self._chosen)
        if self._prunes:
            streams = self._shape[2] + nodes.kept[:, None] * gamma + mx.arange(gamma)
            left = mx.concatenate([nodes.kept, streams.reshape(-1)])
            sees = mx.take(sees[left], left, axis=1)
        self._rows = rows_with_streams(nodes.positions, sees, gamma, beside)
        seeds = decoder.streams.seed(hidden if beside is None else hidden[beside])
        return mx.concatenate([hidden, seeds.reshape(-1, hidden.shape[-1])])
