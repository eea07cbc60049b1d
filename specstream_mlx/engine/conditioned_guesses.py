"""Guesses of streams that know the token before: one stream after the other, on the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..models.head_rows import rows_of
from ..models.streams import ConditionedHead
from .borrowed_model import BorrowedModel
from .candidates import best_places

SHORTLIST = 64
"""Number of tokens that a stream scores behind each path, where it does not score all."""

Guess = Callable[[int, mx.array, mx.array], tuple[mx.array, mx.array]]
"""Function of a stream's number, from 0 on, the tokens before it (sequences, paths), and the number
among the paths of the stream before of the one that each path goes on from; returns candidates
(sequences, paths, k) and their log-probabilities. One text may do without the first axis."""


@dataclass(eq=False)
class Scorer(ABC):
    """A scorer of the tokens of each stream behind paths.

    Attributes:
        model: the base.
        head: the streams' head.
        hidden: (sequences, count, h) the streams after the last layer.
        token: (sequences,) the target's own token, which stream 0 guesses behind.
        vocabulary: (n,) tokens that may be drafted; ``None``: all.
        barred: (sequences, n) see ``Streams.barred``.
    """

    model: BorrowedModel
    head: ConditionedHead
    hidden: mx.array
    token: mx.array
    vocabulary: mx.array | None = None
    barred: mx.array | None = None

    def __post_init__(self) -> None:
        self._normalized = self.head.normalized(self.hidden)
        read, count = self.head.of_streams(self._normalized), self.hidden.shape[1]
        each = mx.split(self._normalized, count, axis=1), mx.split(read, count, axis=1)
        self._of_streams = list(zip(*each, strict=True))

    @abstractmethod
    def logits(self, stream: int, before: mx.array) -> tuple[mx.array, mx.array | None]:
        """Score the tokens of a stream.

        Args:
            stream: its number, from 0 on.
            before: (sequences, paths) the tokens before.

        Returns:
            (sequences, paths, n) logits, and the tokens of their columns: (n,), or (sequences, n)
            where sequences differ; ``None``: all tokens.
        """

    @abstractmethod
    def of_first_paths(self) -> mx.array | None:
        """Return the logits (sequences, gamma, n) of all streams behind their first paths.

        ``None`` where not all tokens are scored.
        """

    def features(self, stream: int, before: mx.array) -> mx.array:
        """Compute the LM head's inputs (sequences, paths, h) for a stream behind paths."""
        return self.head.behind(*self._of_streams[stream], self.model.embed(before))


@dataclass(eq=False)
class WholeHead(Scorer):
    """A scorer of all tokens behind each path, which reads the LM head once for every stream."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._made: list[mx.array] = []

    def logits(self, stream: int, before: mx.array) -> tuple[mx.array, mx.array | None]:
        logits = self.model.stream_head(self.features(stream, before))
        self._made.append(without_barred(logits, self.barred))
        return self._made[-1], self.vocabulary

    def of_first_paths(self) -> mx.array | None:
        return mx.stack([logits[:, 0] for logits in self._made], axis=1)


@dataclass(eq=False)
class Shortlists(Scorer):
    """A scorer of a few tokens behind each path, which reads the whole LM head only once.

    The first stream knows the token before and scores all. The others first score all tokens
    without a token before; the likeliest of these are then scored behind each path. All others
    count as impossible.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        first = self.features(0, self.token[:, None])
        features = mx.concatenate([first, self._normalized[:, 1:]], axis=1)
        logits = without_barred(self.model.stream_head(features), self.barred)
        self._first = logits[:, :1]
        count = min(SHORTLIST, logits.shape[-1])
        # Streams first: then the rows of one stream's lists lie together.
        self._places = best_places(logits, count).swapaxes(0, 1)
        self._rows = self.model.stream_head_rows(self._places.flatten())

    def logits(self, stream: int, before: mx.array) -> tuple[mx.array, mx.array | None]:
        if not stream:
            return self._first, self.vocabulary
        places = self._places[stream]
        rows = slice(stream * places.size, (stream + 1) * places.size)
        logits = self.model.stream_head(self.features(stream, before), rows_of(self._rows, rows))
        if len(places) > 1:  # a sequence's own of the rows of all sequences
            each = mx.arange(len(places))
            logits = logits.reshape(*before.shape, *places.shape)[each, :, each]
        if self.barred is not None:
            logits = without_barred(logits, mx.take_along_axis(self.barred, places, axis=1))
        return logits, places if self.vocabulary is None else self.vocabulary[places]

    def of_first_paths(self) -> mx.array | None:
        return None


def without_barred(logits: mx.array, barred: mx.array | None) -> mx.array:
    """Put what ``Streams.barred`` bars (sequences, n) at -inf in logits (sequences, rows, n)."""
    return logits if barred is None else logits + barred[:, None].astype(logits.dtype)


def guess(
    of_stream: Guess, token: mx.array, expansion: Sequence[np.ndarray | None], width: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Let each stream guess behind some of the paths that the streams before it have guessed.

    Args:
        of_stream: function that lets a stream guess.
        token: (sequences,) the target's own token, which stream 0 guesses behind.
        expansion: see ``Plan.expand``; one entry fewer than there are streams.
        width: number of paths that ``LIKELIEST`` expands.

    Returns:
        (sequences, gamma, paths, k) tokens and their log-probabilities, and (sequences, gamma,
        paths) parents: the number of the earlier stream's guess that each path ends with, -1 where
        there is no such path.
    """
    before, joint, parents = token[..., None], None, None
    levels: list[tuple[mx.array, mx.array, mx.array]] = []
    for stream in range(len(expansion) + 1):
        if parents is None:
            parents = mx.full(before.shape, -1, mx.int32)
            tokens, log_probs = of_stream(stream, before, mx.zeros_like(parents))
        else:
            tokens, log_probs = of_stream(stream, before, parents // levels[-1][0].shape[-1])
        levels.append((tokens, log_probs, parents))
        if stream == len(expansion):
            break
        scores = log_probs if joint is None else joint[..., None] + log_probs
        scores, flat = scores.flatten(-2), tokens.flatten(-2)
        chosen = expansion[stream]
        if chosen is None:
            parents = mx.argsort(-scores, axis=-1)[..., :width].astype(mx.int32)
        else:
            shape = *flat.shape[:-1], len(chosen)
            parents = mx.broadcast_to(mx.array(chosen, mx.int32), shape)
        before = mx.take_along_axis(flat, parents, axis=-1)
        joint = mx.take_along_axis(scores, parents, axis=-1)
    paths = max(parents.shape[-1] for *_, parents in levels)
    columns = zip(*(_filled(*level, paths) for level in levels), strict=True)
    of_tokens, of_log_probs, of_parents = map(list, columns)
    return mx.stack(of_tokens, -3), mx.stack(of_log_probs, -3), mx.stack(of_parents, -2)


def _filled(
    tokens: mx.array, log_probs: mx.array, parents: mx.array, paths: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Fill up the arrays to ``paths`` paths; the added ones have the parent -1."""
    missing = paths - parents.shape[-1]
    if not missing:
        return tokens, log_probs, parents
    front = [(0, 0)] * (parents.ndim - 1)
    return (
        mx.pad(tokens, [*front, (0, missing), (0, 0)]),
        mx.pad(log_probs, [*front, (0, missing), (0, 0)]),
        mx.pad(parents, [*front, (0, missing)], constant_values=-1),
    )
