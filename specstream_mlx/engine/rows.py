"""The rows of a pass: their positions, and which other rows each of them attends to.

The n nodes of a tree are the main rows. In an MSA layer gamma stream rows follow for each of the
nodes that have streams, node by node: Speculative Streaming, Eq. 2 (streams) and, in ``shared``
mode, Eq. 3 (the main stream sees its own streams). Several sequences may go through a pass side by
side; they have trees of one shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask

from .tree import DraftTree

_MOST_KEPT = 64  # nodes of a tree whose tables, which grow with their square, are kept


@dataclass(frozen=True)
class Rows:
    """The new rows of one pass through a run of layers.

    Behind the committed rows of the KV cache, which all new rows see (in layers with a sliding
    window as far as that reaches back), lie first the rows of an earlier pass of the same step, if
    there were any, then the new ones.

    Attributes:
        positions: (.., rows) int32 absolute positions, or an int: consecutive from there. The
            leading axis is that of several sequences; one sequence has none.
        sees: (.., rows, behind) bool: which rows behind the committed ones each new row attends to;
            ``None``: every row sees those up to itself (a chain).
        anchors: (behind,) positions that windows count from, a stream's being its main row's;
            ``None``: ``positions``.
    """

    positions: mx.array | int
    sees: mx.array | None
    anchors: mx.array | None = None
    _masks: dict[tuple, mx.array] = field(default_factory=dict, compare=False)

    def attention_mask(
        self, count: int, prefix: int, window: int | None = None, as_array: bool = False
    ) -> mx.array | str | None:
        """The mask of the rows of one sequence over the committed rows and those behind them.

        Args:
            count: new rows.
            prefix: committed rows.
            window: a row sees rows less than ``window`` positions back; ``None``: all.
            as_array: never ``"causal"``.

        Returns:
            (count, prefix + behind) bool, the same array for every layer of a pass, or mlx-lm's own
            forms for a chain: ``"causal"``, ``None``.
        """
        behind = count if self.sees is None else self.sees.shape[-1]
        if window is not None and prefix + behind <= window:
            window = None  # reaches back to the first row from everywhere
        if self.sees is None and window is None and (count == 1 or not as_array):
            return "causal" if count > 1 else None
        key = count, prefix, window
        if key not in self._masks:
            if self.sees is None:
                mask = create_causal_mask(count, prefix, window_size=window)
            else:
                mask = mx.concatenate([mx.ones((count, prefix), mx.bool_), self.sees], axis=1)
                if window is not None:
                    mask = mask & self._within(window, prefix, count)
            self._masks[key] = mask
        return self._masks[key]

    def _within(self, window: int, prefix: int, count: int) -> mx.array:
        """(count, prefix + behind) bool: less than ``window`` positions back."""
        anchors = self.positions if self.anchors is None else self.anchors
        keys = mx.concatenate([mx.arange(prefix), anchors])
        return anchors[-count:, None] - keys < window

    def stacked_mask(self, prefix: mx.array, columns: int) -> mx.array:
        """The mask of several sequences whose committed rows differ in number.

        Args:
            prefix: (sequences,) committed rows, which begin in the first column.
            columns: of the arrays of keys and values.

        Returns:
            (sequences, 1, rows, columns) bool, the same array for every layer of a pass.
        """
        if () not in self._masks:
            width = self.sees.shape[-1]
            behind = mx.arange(columns) - prefix[:, None]
            sees = mx.broadcast_to(self.sees, (prefix.size, *self.sees.shape[-2:]))
            index = mx.clip(behind, 0, width - 1)[:, None]
            index = mx.broadcast_to(index, (*sees.shape[:2], columns))
            seen = mx.take_along_axis(sees, index, axis=-1) & (behind < width)[:, None]
            self._masks[()] = ((behind < 0)[:, None] | seen)[:, None]
        return self._masks[()]


# The nodes of a tree --------------------------------------------------------------------------


class TreeShape:
    """Parents and depths of a tree's nodes, with what follows from them, on the device.

    Attributes:
        parents: (n,) int32, -1 for the root.
        depths: (n,) int32.
        is_chain: whether every node is the next one's parent.
    """

    def __init__(self, tree: DraftTree):
        self._tree = tree
        self.parents, self.depths = mx.array(tree.parents), mx.array(tree.depths)
        self.is_chain = tree.is_chain
        self._visibility: dict[tuple, mx.array] = {}

    def __len__(self) -> int:
        return self.parents.size

    @cached_property
    def ancestors(self) -> mx.array:
        """(n, n) bool, ancestors-or-self."""
        return mx.array(self._tree.ancestors)

    @cached_property
    def inner(self) -> tuple[mx.array, mx.array]:
        """Nodes with children (p,), and for each node (n,) its parent's place among these.

        Leaves score no transitions, so the early exit's head, a row of which is dear, goes without.
        """
        inner, place = np.unique(self._tree.parents[1:], return_inverse=True)
        return mx.array(inner), mx.array(np.append(0, place).astype(np.int32))

    def visibility(
        self, num_streams: int, main_sees_streams: bool, beside: Sequence[int] | None = None
    ) -> mx.array:
        """``stream_visibility`` of these nodes, on the device."""
        beside = None if beside is None else tuple(beside)
        key = num_streams, main_sees_streams, beside
        if key not in self._visibility:
            chosen = None if beside is None else np.array(beside)
            self._visibility[key] = mx.array(
                stream_visibility(self._tree.ancestors, num_streams, main_sees_streams, chosen)
            )
        return self._visibility[key]


def shape_of(tree: DraftTree) -> TreeShape:
    """The shape of a tree; the tables of small ones are made once."""
    if len(tree) > _MOST_KEPT:
        return TreeShape(tree)
    return _known_shape(tree.parents.tobytes(), tree.depths.tobytes())


@lru_cache(maxsize=512)
def _known_shape(parents: bytes, depths: bytes) -> TreeShape:
    shape = [np.frombuffer(values, np.int32) for values in (parents, depths)]
    return TreeShape(DraftTree(np.zeros(len(shape[0]), np.int32), *shape))


@dataclass(frozen=True)
class TreeNodes:
    """Tree nodes of one pass, on the device; of several sequences with trees of one shape.

    Attributes:
        tokens: (.., n) int32.
        parents: (n,) int32, the root's is -1.
        ancestors: (n, n) bool, ancestors-or-self.
        positions: (.., n) int32, absolute.
        in_play: (n,) bool, nodes above the threshold of pruning; ``None``: all.
        kept: (n,) int32 their indices in the tree, after pruning; ``None``: all, in order.
    """

    tokens: mx.array
    parents: mx.array
    ancestors: mx.array
    positions: mx.array
    in_play: mx.array | None = None
    kept: mx.array | None = None

    def __len__(self) -> int:
        return self.parents.size

    def keep(self, kept: mx.array, in_play: mx.array) -> "TreeNodes":
        """The nodes at indices ``kept`` (m,), which are closed under parents."""
        new_index = mx.zeros_like(self.parents)
        new_index[kept] = mx.arange(kept.size, dtype=mx.int32)
        return TreeNodes(
            tokens=self.tokens[kept],
            parents=new_index[mx.maximum(self.parents[kept], 0)],
            ancestors=mx.take(self.ancestors[kept], kept, axis=1),
            positions=self.positions[kept],
            in_play=in_play,
            kept=kept,
        )


# Rows with streams ----------------------------------------------------------------------------


def stream_visibility(
    ancestors: np.ndarray,
    num_streams: int,
    main_sees_streams: bool,
    beside: np.ndarray | None = None,
) -> np.ndarray:
    """Which rows see which, of m main rows and the streams beside s of them.

    Args:
        ancestors: (m, m) bool, ancestors-or-self.
        num_streams: gamma.
        main_sees_streams: Eq. 3, shared mode.
        beside: (s,) the main rows that have streams; ``None``: all.

    Returns:
        (m + s * gamma, m + s * gamma) bool, main rows first.
    """
    m, gamma = len(ancestors), num_streams
    beside = np.arange(m) if beside is None else beside
    own = np.arange(m)[:, None] == beside
    main_to_streams = np.repeat(own & main_sees_streams, gamma, axis=1)
    streams_to_main = np.repeat(ancestors[beside], gamma, axis=0)
    earlier = np.tri(gamma, dtype=bool)
    streams_to_streams = np.kron(np.eye(len(beside), dtype=bool), earlier)
    return np.block([[ancestors, main_to_streams], [streams_to_main, streams_to_streams]])


def rows_with_streams(
    nodes: TreeNodes,
    shape: TreeShape,
    num_streams: int,
    main_sees_streams: bool,
    beside: Sequence[int] | None = None,
) -> Rows:
    """The kept nodes and the streams beside some of them, stream j of a node j positions further.

    Args:
        nodes: those kept by pruning.
        shape: of the whole tree.
        num_streams: gamma.
        main_sees_streams: Eq. 3, shared mode.
        beside: the nodes that have streams, where no node was pruned; ``None``: all kept ones.
    """
    gamma = num_streams
    sees = shape.visibility(gamma, main_sees_streams, beside)
    if nodes.kept is not None:
        streams = len(shape) + nodes.kept[:, None] * gamma + mx.arange(gamma)
        left = mx.concatenate([nodes.kept, streams.reshape(-1)])
        sees = mx.take(sees[left], left, axis=1)
    positions = nodes.positions
    seeds = positions if beside is None else positions[..., mx.array(beside)]
    streams = (seeds[..., None] + mx.arange(1, gamma + 1)).flatten(-2)
    anchors = mx.concatenate([positions, mx.repeat(seeds, gamma, axis=-1)], axis=-1)
    return Rows(mx.concatenate([positions, streams], axis=-1), sees, anchors)


def deferred_rows(nodes: TreeNodes, last: mx.array, num_streams: int) -> Rows:
    """The streams of one node of each tree alone, run behind the nodes' own rows.

    Args:
        nodes: those kept, whose rows are not committed yet.
        last: () or (sequences,) the node of each tree.
        num_streams: gamma.
    """
    gamma, path = num_streams, nodes.ancestors[last]
    position = position_of(nodes, last)[..., None]
    earlier = mx.tri(gamma, dtype=mx.float32).astype(mx.bool_)
    parts = [
        mx.broadcast_to(part, (*last.shape, gamma, part.shape[-1]))
        for part in (path[..., None, :], earlier)
    ]
    own = mx.broadcast_to(position, (*last.shape, gamma))
    return Rows(
        position + mx.arange(1, gamma + 1),
        mx.concatenate(parts, axis=-1),
        mx.concatenate([nodes.positions, own], axis=-1),
    )


def position_of(nodes: TreeNodes, last: mx.array) -> mx.array:
    """() or (sequences,) position of one node of each tree."""
    if last.ndim == 0:
        return nodes.positions[last]
    return mx.take_along_axis(nodes.positions, last[:, None], axis=1)[:, 0]
