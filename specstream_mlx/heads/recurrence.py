"""EAGLE's recurrence: a layer that drafts after its own output, with KV rows of its own."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..engine.borrowed_model import BorrowedModel
from ..engine.draft_head import AcceptedRows, OwnRows, Rank
from ..engine.guess import Candidates, guess
from ..engine.kv import UncommittedRows


class Recurrence(Protocol):
    """The weights of a recurrent head, such as EAGLE's; rows are (rows, h)."""

    @property
    def tokens(self) -> mx.array | None:
        """(n,) tokens that are drafted; ``None``: all."""

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        """Make the features of rows that the target has seen, from its hidden states."""

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        """Return the embeddings of tokens (rows,)."""

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        """Run the layer over new rows; returns their output, the next rows' features."""

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        """Return a function of output: logits (rows, n) of the token after each row."""


class RecurrentHead:
    """A ``DraftHead`` by EAGLE's recurrence, of one sequence.

    Row i of the layer is a feature f_i with the token after it, x_{i+1}. Each step reads the rows
    that it accepts, with the target's features in place of drafted ones, and drafts after them.
    """

    def __init__(self, weights: Recurrence, model: BorrowedModel):
        self._weights, self._model, self._rows = weights, model, OwnRows()
        self._score = weights.scorer(model)
        self._held: mx.array | None = None  # (1, h), a row whose next token is not known yet
        self._early = 0  # rows of the newest path that were held back before
        self._places = 0
        self._count: mx.array  # () rows of the newest path that count
        self._output: mx.array  # (1, h) of the last of these
        self._root: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        """Take in committed rows of the prompt; the last one is held back."""
        read, following = self._weights.of_target(features), tokens[1:]
        if self._held is not None:
            read, following = mx.concatenate([self._held, read]), tokens
        self._held = read[-1:]
        if following.size:
            self._run(read[:-1], following)
            self._rows.commit(following.size)
        mx.async_eval(self._held)

    def follow(self, rows: AcceptedRows) -> None:
        """Take in the rows that a step accepts, after the one that was held back."""
        followed = self._weights.of_target(rows.features)
        following, count = rows.following, rows.count
        self._early = 0
        if self._held is not None:
            followed = mx.concatenate([self._held, followed])
            following = mx.concatenate([rows.tokens[:1], following])
            count, self._early, self._held = count + 1, 1, None
        self._places, self._count, self._root = len(followed), count, rows.root
        output = self._run(followed, following)
        self._output = mx.take(output, (count - 1)[None], axis=0)

    def _run(self, features: mx.array, following: mx.array) -> mx.array:
        """Run the layer over places after the committed rows, which are not committed yet."""
        embeddings = self._weights.embed(self._model, following)
        output = self._weights.layer(embeddings, features, self._rows.path())
        self._rows.evaluate()
        return output

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        weights, output = self._weights, self._output
        on_path = mx.arange(self._places) < self._count
        earlier = mx.zeros((1, 0), mx.bool_)  # each row's drafted ancestors and itself

        def of_level(level: int, before: mx.array, rows: mx.array) -> Candidates:
            nonlocal output, earlier
            if level:
                paths = len(before)
                earlier = mx.concatenate([earlier[rows], mx.eye(paths).astype(mx.bool_)], axis=1)
                path = mx.broadcast_to(on_path, (paths, self._places))
                # A row's position is that of its feature; the first drafted one is after the path.
                positions = mx.broadcast_to(self._rows.count + self._count + level - 1, (paths,))
                drafts = self._rows.drafts(positions, mx.concatenate([path, earlier], axis=1))
                embeddings = weights.embed(self._model, before)
                output = weights.layer(embeddings, output[rows], drafts)
            return rank(self._score(output), weights.tokens, level)

        return guess(of_level, self._root, expansion, width)

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows that a step accepted, and the one held back before."""
        self._rows.commit(count + self._early)
        self._early = 0

    def trim(self, count: int) -> None:
        self._rows.trim(count)
