"""EAGLE's recurrence: one layer that drafts features, token by token, over rows of its own.

Row i of the layer is the pair of a feature f_i and of the token behind it, x_{i+1}. Where the
target has seen token i, f_i is made of the target's hidden states there; drafted rows take the
layer's own output. So each step first reads the rows that it accepts, with true features, which
replace what was drafted for them. It then drafts behind the last one: candidates for the token
behind its pair, and for each of the chosen paths one more row.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..engine.borrowed_model import BorrowedModel
from ..engine.conditioned_guesses import guess
from ..engine.draft_head import AcceptedRows, Candidates, Rank
from ..engine.kv import UncommittedRows
from .own_rows import OwnRows

DEPTH = 6
"""Levels that are drafted: EAGLE-2's published depth. The layer itself has no limit."""


class Recurrence(Protocol):
    """The weights of a recurrent head."""

    @property
    def tokens(self) -> mx.array | None:
        """(n,) tokens that are drafted; ``None``: all."""

    def of_target(self, features: tuple[mx.array, ...]) -> mx.array:
        """Make the features (rows, h) of rows that the target has seen, from its hidden states."""

    def embed(self, model: BorrowedModel, tokens: mx.array) -> mx.array:
        """Return the embeddings (rows, h) of tokens (rows,)."""

    def layer(self, embeddings: mx.array, features: mx.array, rows: UncommittedRows) -> mx.array:
        """Run the layer over new rows; returns their output (rows, h), the next rows' features."""

    def scorer(self, model: BorrowedModel) -> Callable[[mx.array], mx.array]:
        """Return a function of output (rows, h): logits (rows, n) of the token behind each row's.

        Args:
            model: the target, whose LM head it may share.
        """


class RecurrentHead:
    """A ``DraftHead`` by EAGLE's recurrence, at work on one text.

    Args:
        weights: the head's weights.
        model: runs the target.
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
        own, following = self._weights.of_target(features), tokens[1:]
        if self._held is not None:
            own, following = mx.concatenate([self._held, own]), tokens
        self._held = own[-1:]
        if following.size:
            self._run(own[:-1], following)
            self._rows.commit(following.size)
        mx.async_eval(self._held)

    def follow(self, rows: AcceptedRows) -> None:
        """Take in the rows that a step accepts, behind the one that was held back."""
        own, following, count = self._weights.of_target(rows.features), rows.following, rows.count
        self._early = 0
        if self._held is not None:
            own = mx.concatenate([self._held, own])
            following = mx.concatenate([rows.tokens[:1], following])
            count, self._early, self._held = count + 1, 1, None
        self._places, self._count, self._root = len(own), count, rows.root
        output = self._run(own, following)
        self._output = mx.take(output, (count - 1)[None], axis=0)

    def _run(self, features: mx.array, following: mx.array) -> mx.array:
        """Run the layer over places behind the committed rows, which are not committed yet."""
        embeddings = self._weights.embed(self._model, following)
        output = self._weights.layer(embeddings, features, self._rows.path(len(features)))
        self._rows.evaluate()
        return output

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Draft behind the accepted rows; see ``DraftHead``."""
        weights, output = self._weights, self._output
        on_path = mx.arange(self._places) < self._count
        behind = mx.zeros((1, 0), mx.bool_)  # the drafted rows on the way to each row, and itself

        def of_level(level: int, before: mx.array, rows: mx.array) -> Candidates:
            nonlocal output, behind
            if level:
                paths = len(before)
                behind = mx.concatenate([behind[rows], mx.eye(paths).astype(mx.bool_)], axis=1)
                path = mx.broadcast_to(on_path, (paths, self._places))
                # A row's position is that of its feature; the first drafted one is behind the path.
                positions = mx.broadcast_to(self._rows.count + self._count + level - 1, (paths,))
                drafts = self._rows.drafts(positions, mx.concatenate([path, behind], axis=1))
                embeddings = weights.embed(self._model, before)
                output = weights.layer(embeddings, output[rows], drafts)
            return rank(self._score(output), weights.tokens, level)

        return guess(of_level, self._root, expansion, width)

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows that a step accepted, and the one held back before."""
        self._rows.commit(count + self._early)
        self._early = 0

    def trim(self, count: int) -> None:
        """Take back the last ``count`` committed rows."""
        self._rows.trim(count)
