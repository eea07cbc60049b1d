"""Guesses of streams and draft heads for the tokens after the next root.

Plain streams guess the token of each depth whatever came before it; conditioned ones know the token
before, and guess one depth after the other, each after the likeliest paths of the one before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np

from ..models.streams import Streams, rows_of
from .borrowed_model import BorrowedModel

SHORTLIST = 64
"""How many tokens a conditioned stream scores after each path, if it does not score all."""

WHOLE_HEAD = 4096
"""The largest draft vocabulary of which conditioned streams score all tokens after each path."""

Guesses = list[tuple[int, float]]
"""Guesses for one token, as (token id, log-probability); no token comes twice."""

Path = tuple[int, ...]
"""Token ids on the way from the root, which is left out, to a node; empty for the root."""

Candidates = tuple[mx.array, mx.array]
"""(rows, k) token ids, best first, and their log-probabilities."""

GuessStream = Callable[[int, mx.array, mx.array], tuple[mx.array, mx.array]]
"""Function of a stream's number, from 0 on, the tokens before it (sequences, paths), and each one's
path among those of the stream before; returns candidates (sequences, paths, k)."""


@dataclass(frozen=True, eq=False)
class StreamGuesses:
    """The guesses of one step, on the host.

    ``parents`` (gamma, paths) are the numbers of the guesses that the paths end with, counted over
    the (paths, k) guesses of the depth before. At depth 1 the only path is empty; -1 fills up rows.
    """

    tokens: np.ndarray  # (gamma, k), best first; (gamma, paths, k) of conditioned streams
    log_probs: np.ndarray
    parents: np.ndarray | None = None  # None: plain streams

    @property
    def depth(self) -> int:
        return len(self.tokens)

    def after(self, path: Path) -> Guesses:
        """Return the guesses for the token after ``path``."""
        if self.parents is not None:
            return self._by_path.get(path, [])
        return self._lists[len(path)][0] if len(path) < self.depth else []

    @cached_property
    def _lists(self) -> list[list[Guesses]]:
        shape = self.depth, -1 if self.depth else 1, self.tokens.shape[-1]
        tokens, scores = (a.reshape(shape).tolist() for a in (self.tokens, self.log_probs))
        return [
            [list(zip(*pair, strict=True)) for pair in zip(*level, strict=True)]
            for level in zip(tokens, scores, strict=True)
        ]

    @cached_property
    def _by_path(self) -> dict[Path, Guesses]:
        assert self.parents is not None
        by_path: dict[Path, Guesses] = {}
        before: list[Path] = []
        for depth, (lists, parents) in enumerate(zip(self._lists, self.parents, strict=True)):
            paths: list[Path] = []
            for guesses, parent in zip(lists, parents.tolist(), strict=True):
                path: Path = ()
                if depth:
                    row, rank = divmod(parent, self.tokens.shape[-1])
                    path = (*before[row], self._lists[depth - 1][row][rank][0])
                paths.append(path)
                if parent >= 0 or not depth:
                    by_path.setdefault(path, guesses)
            before = paths
        return by_path


NO_GUESSES = StreamGuesses(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))


# Candidates of logits -------------------------------------------------------------------------

_GROUP = 64
_SHORT = 1024  # values that are sorted as quickly as partitioned


def normalized(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def best_tokens(
    logits: mx.array, width: int, ids: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Return the ``width`` likeliest tokens; ``ids`` are those of the columns of ``logits``."""
    logits = logits.astype(mx.float32)
    places = _largest(logits, width)
    chosen = mx.take_along_axis(logits, places, axis=-1)
    log_probs = chosen - mx.logsumexp(logits, axis=-1, keepdims=True)
    return places if ids is None else ids[places], log_probs


def drawn_candidates(
    log_probs: mx.array, width: int, key: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Draw ``width`` tokens without replacement, by the Gumbel top-k trick (Kool et al. 2019)."""
    # Where fewer tokens have a probability, any others follow these.
    tokens = _largest(log_probs + mx.random.gumbel(log_probs.shape, key=key), width)
    return tokens, mx.take_along_axis(log_probs, tokens, axis=-1)


def _largest(values: mx.array, width: int) -> mx.array:
    """Return indices (rows, k) int32 of the largest of (rows, n), in descending order."""
    if width == 1:
        return mx.argmax(values, axis=-1, keepdims=True).astype(mx.int32)
    rows, count = values.shape
    if count < 2 * width * _GROUP:
        return _first(values, width)
    if count % _GROUP:
        # Values that fill up the last group must not tie with impossible tokens.
        values = mx.maximum(values, mx.finfo(values.dtype).min)
        values = mx.pad(values, [(0, 0), (0, -count % _GROUP)], constant_values=-mx.inf)
    # Sorting a vocabulary is dear; the k largest lie in the k groups with the largest maxima.
    values = values.reshape(rows, -1, _GROUP)
    groups = mx.argpartition(-values.max(axis=-1), kth=width - 1, axis=-1)[:, :width]
    members = mx.take_along_axis(values, groups[:, :, None], axis=1).reshape(rows, -1)
    place = _first(members, width)
    group = mx.take_along_axis(groups, place // _GROUP, axis=-1).astype(mx.int32)
    return group * _GROUP + place % _GROUP


def _first(values: mx.array, width: int) -> mx.array:
    """Compute ``_largest`` by a sort, or by a partition and a sort of its k values."""
    count = values.shape[-1]
    if count <= _SHORT:
        return mx.argsort(-values, axis=-1)[:, :width].astype(mx.int32)
    place = mx.argpartition(-values, kth=min(width, count) - 1, axis=-1)[:, :width]
    place = mx.sort(place, axis=-1)  # so that ties keep their order
    order = mx.argsort(-mx.take_along_axis(values, place, axis=-1), axis=-1)
    return mx.take_along_axis(place, order, axis=-1).astype(mx.int32)


def without_barred(logits: mx.array, barred: mx.array | None) -> mx.array:
    """Set logits (sequences, rows, n) to -inf where ``Streams.barred`` (sequences, n) says so."""
    return logits if barred is None else logits + barred[:, None].astype(logits.dtype)


# Conditioned streams --------------------------------------------------------------------------


class Scorer:
    """Scores the tokens of conditioned streams (sequences, count, h) after paths.

    It scores all tokens after each path, which reads the LM head once for every stream; or, if
    ``short``, reads the whole head only once: the first stream scores all, the others score all
    without a token before, and then the likeliest of these after each path.
    """

    def __init__(
        self, model: BorrowedModel, streams: Streams, hidden: mx.array, token: mx.array, short: bool
    ):
        head = streams.head
        assert head is not None
        self._model, self._head, self._short = model, head, short
        self._vocabulary, self._barred = streams.vocabulary, streams.barred
        normalized, count = head.normalized(hidden), hidden.shape[1]
        read = mx.split(head.of_streams(normalized), count, axis=1)
        self._of_streams = list(zip(mx.split(normalized, count, axis=1), read, strict=True))
        self._whole: list[mx.array] = []  # logits of all tokens, by stream
        if short:
            first = self._features(0, token[:, None])
            features = mx.concatenate([first, normalized[:, 1:]], axis=1)
            logits = without_barred(model.stream_head(features), self._barred)
            self._whole.append(logits[:, :1])
            length = min(SHORTLIST, logits.shape[-1])
            places = _largest(logits.flatten(0, -2), length).reshape(*logits.shape[:-1], length)
            # Streams first: then the rows of one stream's lists lie together.
            self._places = places.swapaxes(0, 1)
            self._rows = model.stream_head_rows(self._places.flatten())

    def _features(self, stream: int, before: mx.array) -> mx.array:
        return self._head.after(*self._of_streams[stream], self._model.embed(before))

    def logits(self, stream: int, before: mx.array) -> tuple[mx.array, mx.array | None]:
        """Score the tokens of a stream after the tokens ``before`` (sequences, paths).

        The second result are the tokens of the columns; ``None``: all tokens.
        """
        if not self._short:
            logits = self._model.stream_head(self._features(stream, before))
            self._whole.append(without_barred(logits, self._barred))
            return self._whole[-1], self._vocabulary
        if not stream:
            return self._whole[0], self._vocabulary
        places = self._places[stream]
        rows = slice(stream * places.size, (stream + 1) * places.size)
        logits = self._model.stream_head(self._features(stream, before), rows_of(self._rows, rows))
        if len(places) > 1:  # a sequence's own of the rows of all sequences
            each = mx.arange(len(places))
            logits = logits.reshape(*before.shape, *places.shape)[each, :, each]
        if self._barred is not None:
            logits = without_barred(logits, mx.take_along_axis(self._barred, places, axis=1))
        return logits, places if self._vocabulary is None else self._vocabulary[places]

    def of_first_paths(self) -> mx.array | None:
        return None if self._short else mx.stack([logits[:, 0] for logits in self._whole], axis=1)


def guess(
    guess_stream: GuessStream, token: mx.array, expansion: Sequence[np.ndarray | None], width: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Let each stream guess after some of the paths that the streams before it have guessed.

    ``token`` (sequences,) is the target's own, after which stream 0 guesses; ``expansion``, one
    entry fewer than there are streams, is ``Plan.expand``, and ``width`` paths are ``LIKELIEST``.
    Returns the arrays of ``StreamGuesses`` by sequence.
    """
    before, joint = token[..., None], None
    parents = mx.full(before.shape, -1, mx.int32)
    rows = mx.zeros_like(parents)
    levels: list[tuple[mx.array, mx.array, mx.array]] = []
    for stream in range(len(expansion) + 1):
        tokens, log_probs = guess_stream(stream, before, rows)
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
        rows = parents // tokens.shape[-1]
    most = max(parents.shape[-1] for *_, parents in levels)
    filled = []
    for tokens, log_probs, parents in levels:
        missing = most - parents.shape[-1]
        if missing:
            axes = [*[(0, 0)] * (parents.ndim - 1), (0, missing)]
            tokens, log_probs = (mx.pad(a, [*axes, (0, 0)]) for a in (tokens, log_probs))
            parents = mx.pad(parents, axes, constant_values=-1)
        filled.append((tokens, log_probs, parents))
    of_tokens, of_log_probs, of_parents = map(list, zip(*filled, strict=True))
    return mx.stack(of_tokens, -3), mx.stack(of_log_probs, -3), mx.stack(of_parents, -2)
