"""Tree nodes as device arrays, and the tables of a tree shape, built once for each shape."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from ..drafting.tree import DraftTree
from .msa import stream_visibility

Tables = TypeVar("Tables")

_MOST_KEPT = 64  # nodes of a tree whose tables, which grow with their square, are kept


@dataclass(frozen=True)
class TreeNodes:
    """Tree nodes of one pass, on the device; see ``tree.DraftTree``."""

    tokens: mx.array
    parents: mx.array
    ancestors: mx.array
    positions: mx.array
    in_play: mx.array | None = None
    kept: mx.array | None = None

    def __len__(self) -> int:
        return self.tokens.size

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


def _kept(maxsize: int) -> Callable[[Callable[..., Tables]], Callable[..., Tables]]:
    """``lru_cache`` for tables of a shape, but for those of large trees."""

    def decorate(build: Callable[..., Tables]) -> Callable[..., Tables]:
        cached = lru_cache(maxsize)(build)

        @wraps(build)
        def tables(parents: bytes, depths: bytes, count: int, *rest: Any) -> Tables:
            find = cached if count <= _MOST_KEPT else build
            return find(parents, depths, count, *rest)

        return tables

    return decorate


@_kept(maxsize=1024)
def shape_tables(parents: bytes, depths: bytes, count: int) -> tuple[mx.array, ...]:
    """Parents, depths and ancestor mask of a tree shape, on the device."""
    tree = _of_shape(parents, depths, count)
    return mx.array(tree.parents), mx.array(tree.depths), mx.array(tree.ancestors)


def _of_shape(parents: bytes, depths: bytes, count: int) -> DraftTree:
    shape = (np.frombuffer(values, np.int32) for values in (parents, depths))
    return DraftTree(np.zeros(count, np.int32), *shape)


@lru_cache(maxsize=256)
def inner_tables(parents: bytes) -> tuple[mx.array, mx.array]:
    """Nodes with children (p,), and for each node (n,) its parent's place among these.

    Leaves score no transitions, so the early exit's head, a row of which is dear, goes without.
    """
    inner, place = np.unique(np.frombuffer(parents, np.int32)[1:], return_inverse=True)
    return mx.array(inner), mx.array(np.append(0, place).astype(np.int32))


@_kept(maxsize=256)
def tree_visibility(
    parents: bytes,
    depths: bytes,
    count: int,
    num_streams: int,
    main_sees_streams: bool,
    beside: tuple[int, ...] | None = None,
) -> mx.array:
    """``msa.stream_visibility`` of a whole tree of this shape, on the device."""
    ancestors = _of_shape(parents, depths, count).ancestors
    chosen = None if beside is None else np.array(beside)
    return mx.array(stream_visibility(ancestors, num_streams, main_sees_streams, chosen))
