"""Multi-stream attention: which rows an MSA layer holds and what each of them may see.

Rows of an MSA layer: first the m main rows (kept tree nodes), then gamma stream rows for each of
the s nodes that have streams, node by node. Speculative Streaming, Eq. 2 (streams) and, in
``shared`` mode, Eq. 3 (the main stream sees its own streams).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.base import create_causal_mask


@dataclass(frozen=True)
class Rows:
    """The new rows of one pass through a run of layers.

    Attributes:
        positions: (rows,) int32 absolute positions, or an int: consecutive from there.
        sees: (rows, rows) bool: which new rows each new row attends to, or ``None`` where every
            row sees those up to itself (a chain). All rows see the whole committed prefix, in
            layers with a sliding window as far as that reaches back.
        hidden_prefix: (hidden,) bool or ``None``: rows that lie between the prefix and the new
            rows in the KV cache, and which of them the new rows see.
        hidden_positions: (hidden,) positions of these.
        anchors: (rows,) positions that windows count from, a stream's being its main row's;
            ``None``: ``positions``.
    """

    positions: mx.array | int
    sees: mx.array | None
    hidden_prefix: mx.array | None = None
    hidden_positions: mx.array | None = None
    anchors: mx.array | None = None
    _masks: dict[tuple[int, int, int | None], mx.array] = field(default_factory=dict, compare=False)

    def attention_mask(
        self, count: int, prefix: int, window: int | None = None, as_array: bool = False
    ) -> mx.array | str | None:
        """The mask of ``count`` new rows over ``prefix`` committed rows and themselves.

        Args:
            count: new rows.
            prefix: committed rows.
            window: a row sees rows less than ``window`` positions back; ``None``: all.
            as_array: never ``"causal"``.

        Returns:
            (count, prefix + hidden + count) bool, the same array for every layer of a pass, or
            mlx-lm's own forms for a chain: ``"causal"``, ``None``.
        """
        hidden = 0 if self.hidden_prefix is None else self.hidden_prefix.size
        if window is not None and prefix + hidden + count <= window:
            window = None  # reaches back to the first row from everywhere
        if self.sees is None and window is None and (count == 1 or not as_array):
            return "causal" if count > 1 else None
        key = count, prefix, window
        if key not in self._masks:
            if self.sees is None:
                mask = create_causal_mask(count, prefix, window_size=window)
            else:
                mask = self._visibility(count, prefix)
                if window is not None:
                    mask = mask & self._within(window, prefix)
            self._masks[key] = mask
        return self._masks[key]

    def _visibility(self, count: int, prefix: int) -> mx.array:
        """(count, all rows) bool without windows."""
        parts = [mx.ones((count, prefix), mx.bool_)]
        if self.hidden_prefix is not None:
            shape = count, self.hidden_prefix.size
            parts.append(mx.broadcast_to(self.hidden_prefix, shape))
        return mx.concatenate([*parts, self.sees], axis=1)

    def _within(self, window: int, prefix: int) -> mx.array:
        """(count, all rows) bool: less than ``window`` positions back."""
        anchors = self.positions if self.anchors is None else self.anchors
        keys = [mx.arange(prefix)]
        if self.hidden_positions is not None:
            keys.append(self.hidden_positions)
        return anchors[:, None] - mx.concatenate([*keys, anchors]) < window


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
    positions: mx.array, sees: mx.array, num_streams: int, beside: mx.array | None = None
) -> Rows:
    """The rows of m main rows and of the streams beside s of them, j positions further each.

    Args:
        positions: (m,) absolute positions of the main rows.
        sees: of all of these, from ``stream_visibility``.
        num_streams: gamma.
        beside: (s,) the main rows that have streams; ``None``: all.
    """
    seeds = positions if beside is None else positions[beside]
    streams = seeds[:, None] + mx.arange(1, num_streams + 1)
    return Rows(
        mx.concatenate([positions, streams.reshape(-1)]),
        sees,
        anchors=mx.concatenate([positions, mx.repeat(seeds, num_streams)]),
    )


def deferred_rows(
    node: mx.array, positions: mx.array, ancestors: mx.array, num_streams: int
) -> Rows:
    """Rows of the streams of one node alone, run after the nodes' own rows.

    Args:
        node: scalar, the node's index among the n uncommitted rows that lie before the streams in
            the KV cache.
        positions: (n,) absolute positions of these.
        ancestors: (n, n) bool, ancestors-or-self.
        num_streams: gamma.
    """
    earlier = mx.tri(num_streams, dtype=mx.float32).astype(mx.bool_)
    return Rows(
        positions[node] + mx.arange(1, num_streams + 1),
        earlier,
        hidden_prefix=ancestors[node],
        hidden_positions=positions,
        anchors=mx.broadcast_to(positions[node], (num_streams,)),
    )


class SplitMLP(nn.Module):
    """An MSA layer's MLP with the stream rows taken through their adapter, or through both.

    Args:
        mlp: the layer's MLP.
        main_rows: how many of the rows, from the first on, are main rows.
        adapter: (1, rows, h) -> (1, rows, h) for the stream rows.
        beside: the adapter is added to the MLP; else it takes the MLP's place.
    """

    def __init__(
        self,
        mlp: nn.Module,
        main_rows: int,
        adapter: Callable[[mx.array], mx.array],
        beside: bool,
    ):
        super().__init__()
        self._mlp, self._main_rows = mlp, main_rows
        self._adapter, self._beside = adapter, beside

    def __call__(self, x: mx.array) -> mx.array:
        count = self._main_rows
        if x.shape[1] == count:
            return self._mlp(x)
        streams = self._adapter(x[:, count:])
        if self._beside:  # one product over all rows: its weights are read once
            through = self._mlp(x)
            main, streams = through[:, :count], through[:, count:] + streams
        elif count:
            main = self._mlp(x[:, :count])
        return mx.concatenate([main, streams], axis=1) if count else streams


def value_rotation(main_rows: int, num_streams: int, epsilon: float) -> Callable:
    """Rotate the streams' own value rows: pairs (i, i + d/2) by ``epsilon * j`` (section 3.1).

    Returns:
        A map of values (1, kv_heads, main_rows + s * gamma, d).
    """

    def rotate(values: mx.array) -> mx.array:
        main, streams = mx.split(values, [main_rows], axis=2)
        count = streams.shape[2] // num_streams
        angle = epsilon * mx.tile(mx.arange(1, num_streams + 1), (count,))[:, None]
        cos, sin = mx.cos(angle).astype(values.dtype), mx.sin(angle).astype(values.dtype)
        first, second = mx.split(streams, 2, axis=-1)
        rotated = [first * cos - second * sin, first * sin + second * cos]
        return mx.concatenate([main, mx.concatenate(rotated, axis=-1)], axis=2)

    return rotate
