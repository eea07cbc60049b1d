"""Sequences of one training step: their tokens, positions with streams, and targets.

Streams run at the last prompt token and every completion token but the last. All that depends on
lengths alone is computed here, on the host, so that a step's shapes are known before it begins.
Shapes: B sequences of T tokens, C positions with streams, gamma streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .batches import Item


@dataclass(frozen=True)
class Sequences:
    """Sequences, padded on the right, and their positions with streams."""

    tokens: mx.array  # (B, T) int32
    positions: mx.array  # (B, segments, c) int32, ascending, also past a sequence's end
    prompt_rows: int  # main rows, from the first on, that a shared main stream has without streams


@dataclass(frozen=True)
class Scored:
    """The rows whose predictions count, as one list of n, the main stream's first.

    ``rows`` are places among the B * C * (1 + gamma) of positions, each the main stream and then
    streams 1 to gamma; ``exits`` are places among the B * C positions. All but weights are int32.
    """

    rows: mx.array
    main_rows: int
    targets: mx.array  # tokens to predict; of a draft vocabulary their places in it
    streams: mx.array  # 0 for the main stream
    weights: mx.array  # factors of their losses
    exits: mx.array  # where the early exit predicts
    exit_targets: mx.array
    exit_weight: float


def sequences_of(
    items: Sequence[Item],
    alphas: Sequence[float],
    segment: int = 8,
    exits: bool = True,
    places: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> tuple[Sequences, Scored]:
    """Lay out a step in segments of ``segment`` positions.

    A stream's loss is the mean over those of its targets that lie within the sequences (Eq. 6) and
    in the draft vocabulary (``places_of``), so each of its rows weighs ``alpha`` over their number,
    or over that of ``counts`` (1 + gamma,). Rows of weight 0 are not scored.
    """
    lengths = np.array([len(item.tokens) for item in items])
    first = np.array([item.stream_from - 1 for item in items])
    segments, length = -(-max(len(item.positions) for item in items) // segment), int(lengths.max())
    tokens = np.zeros((len(items), length), np.int32)
    positions = np.zeros((len(items), segments * segment), np.int64)
    for row, own, item in zip(tokens, positions, items, strict=True):
        row[: len(item.tokens)] = item.tokens
        count = len(item.positions)
        own[:count] = item.positions
        own[count:] = len(item.tokens) - 1 + np.arange(len(own) - count)
    ahead = positions[..., None] + np.arange(1, len(alphas) + 1)
    has_target = ahead < lengths[:, None, None]
    targets = np.take_along_axis(
        tokens, np.minimum(ahead, length - 1).reshape(len(items), -1), axis=1
    ).reshape(ahead.shape)
    wanted = np.flatnonzero(has_target[..., 0]) if exits else np.zeros(0, np.int64)
    exit_targets = targets[..., 0].reshape(-1)[wanted]
    if places is not None:
        targets[..., 1:] = places[targets[..., 1:]]
        has_target[..., 1:] &= targets[..., 1:] >= 0
    if counts is None:
        counts = has_target.sum((0, 1))
    weights = np.array(alphas) / np.where(counts > 0, counts, 1)
    chosen = np.flatnonzero(has_target & (np.array(alphas) != 0))
    of_main = chosen % len(alphas) == 0
    chosen = np.concatenate([chosen[of_main], chosen[~of_main]])
    streams = chosen % len(alphas)
    places_of_rows = positions.reshape(len(items), segments, segment)
    return (
        Sequences(mx.array(tokens), mx.array(places_of_rows, mx.int32), int(first.max())),
        Scored(
            rows=mx.array(chosen, mx.int32),
            main_rows=int(of_main.sum()),
            targets=mx.array(targets.reshape(-1)[chosen], mx.int32),
            streams=mx.array(streams, mx.int32),
            weights=mx.array(weights[streams], mx.float32),
            exits=mx.array(wanted, mx.int32),
            exit_targets=mx.array(exit_targets, mx.int32),
            exit_weight=float(1 / counts[0]),
        ),
    )


def count_targets(items: Sequence[Item], rows: int, places: np.ndarray | None) -> np.ndarray:
    """Count the targets (rows,) of the main stream and of the streams after it."""
    counts = np.zeros(rows, np.int64)
    for item in items:
        completion = np.array(item.tokens[item.stream_from :])
        drafted = completion >= 0 if places is None else places[completion] >= 0
        counts += [len(completion), *(drafted[stream:].sum() for stream in range(1, rows))]
    return counts


def places_of(vocabulary: mx.array | None, vocab_size: int) -> np.ndarray | None:
    """Return each token's place (V,) in a draft vocabulary (n,), -1: none; ``None`` without one."""
    if vocabulary is None:
        return None
    places = np.full(vocab_size, -1)
    places[np.array(vocabulary)] = np.arange(len(vocabulary))
    return places
