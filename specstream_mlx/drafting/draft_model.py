"""Drafts of a second, smaller language model with the same vocabulary.

It grows a tree level by level, as EAGLE-2 does (arXiv 2406.16858); width 1 is the chain of
Leviathan et al. (arXiv 2211.17192) and ``mlx_lm``.
"""

import math
import os
import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..engine.borrowed_model import BorrowedModel
from ..engine.guess import Guesses, Path, StreamGuesses
from ..engine.kv import UncommittedRows, commit, make_caches
from ..engine.plan import Verified
from ..engine.rows import Rows
from ..engine.verify.rule import VerifyRule
from ..errors import UserError, shown
from ..hardware import running
from ..hardware.weights import parameter_bytes
from ..loading.speculative_model import SpeculativeModel
from ..models.architectures import text_limit
from .best_first import LEAST
from .calibration import Backoff, StreamAverages
from .proposer import Material, Price, Proposer

_CHUNK = 512  # tokens of a prompt in a pass
_EXPANDED = 4  # paths of a level after which the model guesses again
_PADDING = 1024  # rows by which embeddings of one vocabulary may differ, filled up as they are
_HITS = 0.7  # of a level's best guesses, until the text has shown it


class DraftModel(Proposer):
    """A second model, which guesses up to ``most`` tokens after the sequence.

    A level is drafted only if its tokens may be worth the pass. If passes do not pay, it pauses.
    """

    def __init__(self, draft: Any, most: int, material: Material):
        target = material.model
        assert target is not None  # packages have no draft model
        self._reader = _Reader(draft, target.config["vocab_size"])
        size = parameter_bytes(_parts(draft)[0])
        self._share = size / parameter_bytes(target.model)  # of a plain step, until one was timed
        self._rule = material.rule or VerifyRule()
        self._most, self._width, self._nodes = most, material.width, material.nodes
        self._unread = list(material.prompt)
        self._averages, self._guesses = StreamAverages(), _PathGuesses({})
        self._backoff = Backoff()
        self._cost = self._spent = 0.0  # of the last round in tokens; seconds
        self._seconds: float | None = None  # of a pass

    def accept(self, tokens: Sequence[int]) -> None:
        self._averages.accept(tokens)
        self._unread += tokens
        if not self._guesses.depth:
            return
        path: Path = ()
        for token in tokens:
            if all(guess != token for guess, _ in self._guesses.after(path)):
                break
            path = (*path, token)
        self._backoff.note(len(path))

    def begin(self, verified: Verified, price: Price) -> None:
        self._guesses = _PathGuesses({})
        room = self._reader.has_room(len(self._unread) + self._most - 1)
        if room and not self._backoff.begin(self._cost if price.rate else 0.0):
            with mx.stream(running.generation_stream):
                self._guesses = _PathGuesses(self._grown(price))
        self._averages.take(self._guesses)

    def children(self, path: Path) -> Guesses:
        return self._averages.after(path)

    def spent(self) -> float:
        spent, self._spent = self._spent, 0.0
        return spent

    def _grown(self, price: Price) -> dict[Path, Guesses]:
        """Let the model read the new tokens and guess, level by level."""
        started = time.perf_counter()
        long = len(self._unread) > _CHUNK
        logits = self._reader.read(self._unread)
        self._unread = []
        if long:  # a prompt's cost is no guess's
            mx.eval(logits)
            started = time.perf_counter()
        by_path: dict[Path, Guesses] = {}
        least = LEAST if price.rate else -math.inf
        level, scores = [()], {(): 0.0}  # type: list[Path], dict[Path, float]
        drafted: list[float] = []
        for depth in range(self._most):
            if depth:
                logits = self._reader.branch(level)
            guesses = self._ranked(logits, depth)
            by_path |= dict(zip(level, guesses, strict=True))
            scores = {
                (*path, token): scores[path] + score
                for path in level
                for token, score in by_path[path]
                if scores[path] + score >= least
            }
            drafted += scores.values()
            level = sorted(scores, key=scores.__getitem__, reverse=True)
            level = level[: min(_EXPANDED, self._width)]
            if not level or not self._goes_on([scores[path] for path in level], drafted, price):
                break
        passes = depth + 1
        seconds = time.perf_counter() - started
        self._spent += seconds
        before = seconds / passes if self._seconds is None else self._seconds
        self._seconds = before + (seconds / passes - before) / 4
        self._cost = passes * self._pass_cost(price)
        return by_path

    def _goes_on(self, level: Sequence[float], drafted: Sequence[float], price: Price) -> bool:
        """Whether another pass, after the paths of a level, may be worth it."""
        if sum(score >= level[0] for score in drafted) >= self._nodes:
            return False  # nothing after this level could enter the tree
        hope = _HITS * sum(map(math.exp, level))
        return hope > self._pass_cost(price) + price.row

    def _pass_cost(self, price: Price) -> float:
        """Return the worth of a pass's time in tokens."""
        if price.plain is None or self._seconds is None:
            return price.rate * self._share
        return price.rate * self._seconds / price.plain

    def _ranked(self, logits: mx.array, place: int) -> list[Guesses]:
        """Return the likeliest tokens of each row of logits, as the rule draws them."""
        tokens, log_probs = self._rule.rank_drafts(logits, place, self._width)
        mx.eval(tokens, log_probs)
        rows = zip(np.array(tokens), np.array(log_probs), strict=True)
        return [list(zip(ids.tolist(), scores.tolist(), strict=True)) for ids, scores in rows]


class _PathGuesses(StreamGuesses):
    """Guesses after each path that was read, in the form of the streams', to be corrected."""

    def __init__(self, by_path: dict[Path, Guesses]):
        nothing = np.empty((0, 0), np.int32)
        super().__init__(nothing, nothing.astype(np.float32), nothing)
        self._guessed = by_path

    @property
    def depth(self) -> int:
        return 1 + max(map(len, self._guessed), default=-1)

    def after(self, path: Path) -> Guesses:
        return self._guessed.get(path, [])


class _Reader:
    """A model with its KV cache; it reads a sequence and, without storing them, paths after it."""

    def __init__(self, draft: Any, vocab_size: int):
        model, config = _parts(draft)
        self._caches = make_caches(model, config)
        self._model = BorrowedModel(model)
        self._known, self._vocab_size = config["vocab_size"], vocab_size
        self._limit = text_limit(config)
        self._rows: list[Path] = []  # drafted paths after the committed rows

    def has_room(self, tokens: int) -> bool:
        """Whether there are positions for so many more tokens; learned positions are limited."""
        return self._limit is None or self._caches[0].offset + tokens <= self._limit

    def read(self, tokens: Sequence[int]) -> mx.array:
        """Commit tokens; returns the logits (1, n) after the last one."""
        self._rows = []
        for start in range(0, len(tokens), _CHUNK):
            part = tokens[start : start + _CHUNK]
            last = start + _CHUNK >= len(tokens)
            stand_ins = self._stand_ins(Rows(self._caches[0].offset))
            logits = self._model.logits(self._ids(part), stand_ins)
            commit(stand_ins, [range(len(part))])
            if not last:
                mx.eval([cache.state for cache in self._caches])
        return logits[0, -1:, : self._vocab_size]

    def branch(self, paths: Sequence[Path]) -> mx.array:
        """Read the last tokens of paths whose beginnings were read; returns logits (paths, n)."""
        skip, rows = len(self._rows), [*self._rows, *paths]
        sees = np.array([[other == path[: len(other)] for other in rows] for path in paths])
        offset = self._caches[0].offset
        anchors = mx.array([[offset + len(row) - 1 for row in rows]], mx.int32)
        stand_ins = self._stand_ins(Rows(anchors[:, skip:], mx.array(sees[None]), anchors), skip)
        logits = self._model.logits(self._ids([path[-1] for path in paths]), stand_ins)
        self._rows = rows
        return logits[0, :, : self._vocab_size]

    def _stand_ins(self, rows: Rows, skip: int = 0) -> list[UncommittedRows]:
        return [UncommittedRows(cache, rows, skip=skip) for cache in self._caches]

    def _ids(self, tokens: Sequence[int]) -> mx.array:
        """Return token ids (1, n); a token that only the target has is replaced by another one."""
        return mx.array([[token if token < self._known else 0 for token in tokens]], mx.int32)


def _parts(draft: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return an mlx-lm model and its configuration."""
    if isinstance(draft, SpeculativeModel):
        return draft.model, draft.config
    return draft, vars(draft.args)


def check_draft_model(draft: Any, target: SpeculativeModel) -> None:
    """Check that a model, if it is not ``None``, can draft for another one."""
    if draft is None:
        return
    if isinstance(draft, str | os.PathLike):
        raise UserError(f"draft_model is {shown(str(draft))}, expected a model that was loaded")
    model, config = _parts(draft)
    size, wanted = config["vocab_size"], target.config["vocab_size"]
    if abs(size - wanted) >= _PADDING:
        raise UserError(
            f"the draft model's vocabulary has {size} tokens, expected the model's {wanted}"
        )
    make_caches(model, config)
    BorrowedModel(model)
