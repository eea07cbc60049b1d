"""The rows of a pass: their positions, and which other rows each of them attends to.

The n nodes of a tree are the main rows. In an MSA layer gamma stream rows follow for each node that
has streams: Speculative Streaming, Eq. 2 (streams) and, in ``shared`` mode, Eq. 3 (the main stream
sees its own streams). The first axis is that of sequences; smaller trees are padded with roots that
no row sees and no rule judges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask

from .plan import DraftTree, Plan

_MOST_CACHED = 64  # nodes whose tables, which grow with their square, are cached

StreamNodes = Sequence[Sequence[int]] | None
"""The nodes of each tree that have streams, as many in all trees; ``None``: all nodes."""


class Rows:
    """The new rows of one pass through a run of layers, and their masks, each made once.

    All new rows see the committed rows of the KV cache. After these come rows of earlier passes of
    the step, if any, then the new ones.

    ``positions`` are (sequences, rows), or of one sequence the first of consecutive ones; ``sees``
    (sequences, rows, after) are the rows after the committed ones that each new row attends to,
    ``None``: those up to itself; ``anchors`` (sequences, after) are the positions that windows
    count from, for a stream its main row's; ``None``: ``positions``.
    """

    def __init__(
        self,
        positions: mx.array | int,
        sees: mx.array | None = None,
        anchors: mx.array | None = None,
    ):
        self.positions, self.sees, self.anchors = positions, sees, anchors
        # With a single axis, mlx rotates the rows of one sequence in fewer operations.
        self.offset = positions
        if isinstance(positions, mx.array) and len(positions) == 1:
            self.offset = positions[0]
        self._masks: dict[tuple[int, int | None], mx.array] = {}
        self._side_by_side: mx.array | None = None

    def attention_mask(
        self, count: int, prefix: int, window: int | None = None, as_array: bool = False
    ) -> mx.array | str | None:
        """Make the mask of one sequence's rows over the committed rows and those after them."""
        after = count if self.sees is None else self.sees.shape[-1]
        if window is not None and prefix + after <= window:
            window = None  # reaches back to the first row from everywhere
        if self.sees is None and window is None and (count == 1 or not as_array):
            return "causal" if count > 1 else None
        key = prefix, window
        if key not in self._masks:
            if self.sees is None:
                mask = create_causal_mask(count, prefix, window_size=window)
            else:
                mask = mx.concatenate([mx.ones((count, prefix), mx.bool_), self.sees[0]], axis=1)
                if window is not None:
                    anchors = self.positions if self.anchors is None else self.anchors
                    assert isinstance(anchors, mx.array)  # else a chain
                    anchors = anchors[0]
                    keys = mx.concatenate([mx.arange(prefix), anchors])
                    mask = mask & (anchors[-count:, None] - keys < window)
            self._masks[key] = mask
        return self._masks[key]

    def mask_side_by_side(self, prefix: mx.array, columns: int) -> mx.array:
        """Make the mask of sequences whose committed rows differ in number."""
        if self._side_by_side is None:
            sees = self.sees
            assert sees is not None
            width = sees.shape[-1]
            place = mx.arange(columns) - prefix[:, None]  # after the committed rows
            index = mx.clip(place, 0, width - 1)[:, None]
            index = mx.broadcast_to(index, (*sees.shape[:2], columns))
            seen = mx.take_along_axis(sees, index, axis=-1) & (place < width)[:, None]
            self._side_by_side = ((place < 0)[:, None] | seen)[:, None]
        return self._side_by_side


# The nodes of a tree --------------------------------------------------------------------------


class TreeShapes:
    """Tables of the trees of a pass on the device, from each node's parent, -1 for roots."""

    def __init__(self, parents: tuple[tuple[int, ...], ...]):
        self._nodes = nodes = max(map(len, parents))
        padded = [[*tree, *[-1] * (nodes - len(tree))] for tree in parents]
        depths = np.zeros((len(parents), nodes), np.int32)
        self._ancestors = np.tile(np.eye(nodes, dtype=bool), (len(parents), 1, 1))
        for number, tree in enumerate(parents):
            for node, parent in enumerate(tree):
                if parent >= 0:
                    depths[number, node] = depths[number, parent] + 1
                    self._ancestors[number, node] |= self._ancestors[number, parent]
        self._parents = np.array(padded, np.int32)
        self.parents, self.depths = mx.array(self._parents), mx.array(depths)
        self.ancestors = mx.array(self._ancestors)  # or self
        self.chains = bool((depths == np.arange(nodes)).all())  # each node is the next's parent
        self._visibility: dict[tuple, mx.array] = {}

    def __len__(self) -> int:
        return self._nodes

    @cached_property
    def inner(self) -> tuple[mx.array, mx.array]:
        """Nodes with children (sequences, p), and the place among them of each node's parent.

        Leaves have no edges to score, so the expensive LM head skips them.
        """
        tables = [
            np.unique(np.append(0, parents[parents >= 0]), return_inverse=True)
            for parents in self._parents
        ]
        most = max(len(nodes) for nodes, _ in tables)
        inner = [np.pad(nodes, (0, most - len(nodes))) for nodes, _ in tables]
        place = np.zeros(self._parents.shape, np.int32)
        for number, (parents, (_, places)) in enumerate(zip(self._parents, tables, strict=True)):
            place[number, parents >= 0] = places[1:]
        return mx.array(np.array(inner, np.int32)), mx.array(place)

    def visibility(
        self, gamma: int, main_sees_streams: Sequence[bool], nodes: StreamNodes
    ) -> mx.array:
        """(sequences, rows, rows) bool, which rows see which, main rows before streams."""
        key = gamma, tuple(main_sees_streams), nodes and tuple(map(tuple, nodes))
        if key not in self._visibility:
            chosen = [range(len(self))] * len(self._ancestors) if nodes is None else nodes
            tables = zip(self._ancestors, chosen, main_sees_streams, strict=True)
            self._visibility[key] = mx.array(np.stack([_visibility(*t, gamma) for t in tables]))
        return self._visibility[key]


def _visibility(
    ancestors: np.ndarray, stream_nodes: Sequence[int], main_sees_streams: bool, gamma: int
) -> np.ndarray:
    nodes = np.array(stream_nodes)
    has_stream = np.arange(len(ancestors))[:, None] == nodes
    main_to_streams = np.repeat(has_stream & main_sees_streams, gamma, axis=1)
    streams_to_main = np.repeat(ancestors[nodes], gamma, axis=0)
    streams_to_streams = np.kron(np.eye(len(nodes), dtype=bool), np.tri(gamma, dtype=bool))
    return np.block([[ancestors, main_to_streams], [streams_to_main, streams_to_streams]])


def shapes_of(trees: Sequence[DraftTree]) -> TreeShapes:
    """Return the shapes of the trees of a pass; the tables of small ones are made once."""
    parents = tuple(tuple(tree.parents.tolist()) for tree in trees)
    small = sum(map(len, parents)) <= _MOST_CACHED
    return _known_shapes(parents) if small else TreeShapes(parents)


_known_shapes = lru_cache(maxsize=512)(TreeShapes)


@dataclass(frozen=True, eq=False)
class TreeNodes:
    """Tree nodes (sequences, n) of one pass, on the device."""

    tokens: mx.array
    parents: mx.array  # a root's is -1
    ancestors: mx.array  # (sequences, n, n) bool, or self
    positions: mx.array
    in_play: mx.array | None = None  # bool, not below pruning's threshold; ``None``: all
    kept: mx.array | None = None  # indices in the whole trees; ``None``: nothing was pruned

    def __len__(self) -> int:
        return self.parents.shape[-1]

    def keep(self, kept: mx.array, in_play: mx.array) -> "TreeNodes":
        """Select the nodes at indices ``kept`` (sequences, m), which are closed under parents."""
        order = mx.broadcast_to(mx.arange(kept.shape[1], dtype=mx.int32), kept.shape)
        new_index = mx.put_along_axis(mx.zeros_like(self.parents), kept, order, axis=1)
        parents = mx.maximum(mx.take_along_axis(self.parents, kept, axis=1), 0)
        return TreeNodes(
            tokens=mx.take_along_axis(self.tokens, kept, axis=1),
            parents=mx.take_along_axis(new_index, parents, axis=1),
            ancestors=rows_and_columns(self.ancestors, kept),
            positions=mx.take_along_axis(self.positions, kept, axis=1),
            in_play=in_play,
            kept=kept,
        )

    def of(self, number: int, count: int) -> "TreeNodes":
        """Return the nodes of one tree, without the axis of sequences and without padding."""
        whole = count == len(self)
        nodes = number if whole else (number, slice(count))
        return TreeNodes(
            tokens=self.tokens[nodes],
            parents=self.parents[nodes],
            ancestors=self.ancestors[number if whole else (number, slice(count), slice(count))],
            positions=self.positions[nodes],
            in_play=None if self.in_play is None else self.in_play[nodes],
            kept=None if self.kept is None else self.kept[nodes],
        )


def at(array: mx.array, index: mx.array) -> mx.array:
    """(sequences, m, ..) of an array (sequences, n, ..) at the indices (sequences, m)."""
    if len(array) == 1:  # mlx gathers along one axis in a third of the time
        return mx.take(array, index[0], axis=1)
    return array[mx.arange(len(array))[:, None], index]


def rows_and_columns(array: mx.array, index: mx.array) -> mx.array:
    """(sequences, m, m) of (sequences, n, n) at the rows and columns ``index`` (sequences, m)."""
    if len(array) == 1:
        return mx.take(mx.take(array, index[0], axis=1), index[0], axis=2)
    return at(at(array, index).swapaxes(1, 2), index).swapaxes(1, 2)


@dataclass(frozen=True, eq=False)
class StepInputs:
    """The inputs of a step: each sequence's plan, the common plan of the pass, and the trees."""

    plans: Sequence[Plan]
    plan: Plan
    shapes: TreeShapes
    tokens: mx.array  # (sequences, n) int32
    sees: mx.array | None = None  # of rows with streams, see ``TreeShapes.visibility``
    stream_nodes: mx.array | None = None  # (sequences, few) nodes with streams; ``None``: all

    @property
    def sizes(self) -> list[int]:
        return [len(plan.tree) for plan in self.plans]

    def nodes(self, offset: int | mx.array) -> TreeNodes:
        positions = (offset if isinstance(offset, int) else offset[:, None]) + self.shapes.depths
        return TreeNodes(self.tokens, self.shapes.parents, self.shapes.ancestors, positions)


# Rows with streams ----------------------------------------------------------------------------


def rows_with_streams(
    nodes: TreeNodes, whole: int, gamma: int, sees: mx.array, stream_nodes: mx.array | None
) -> Rows:
    """Make rows of the kept nodes and of streams at some of them; stream j is j positions further.

    ``sees`` is the ``visibility`` in whole trees, of ``whole`` nodes. ``stream_nodes`` (sequences,
    few) is ``None`` where any node was pruned.
    """
    if nodes.kept is not None:
        streams = whole + nodes.kept[..., None] * gamma + mx.arange(gamma)
        sees = rows_and_columns(sees, mx.concatenate([nodes.kept, streams.flatten(1)], axis=1))
    positions = nodes.positions
    seeds = (
        positions if stream_nodes is None else mx.take_along_axis(positions, stream_nodes, axis=1)
    )
    streams = (seeds[..., None] + mx.arange(1, gamma + 1)).flatten(1)
    anchors = mx.concatenate([positions, mx.repeat(seeds, gamma, axis=1)], axis=1)
    rows = mx.concatenate([positions, streams], axis=1)
    return Rows(rows, sees, anchors)
