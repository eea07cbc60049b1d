"""Draft heads: what guesses from the target's hidden states, in the place of streams.

EAGLE-3's is one (``drafting.eagle3``), and ``mount_head`` takes any other ``MountedHead``. Heads
are trained for a target, touch nothing that it computes, and draft what streams would: candidates
with log-probabilities, by depth or by path. A step stays on the device from the target's pass to
the guesses: a head knows which nodes were accepted, and how many, as arrays alone. The host says
the number afterwards, by ``commit``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from ..errors import Mode
from ..terminal.notes import note
from .borrowed_model import BorrowedModel
from .guess import Candidates, StreamGuesses
from .kv import UncommittedRows
from .plan import DraftTree
from .rows import Rows, TreeNodes

Rank = Callable[[mx.array, mx.array | None, int | None], Candidates]
"""Function of logits (rows, n), the tokens (n,) of their columns (``None``: all tokens) and the
depth of all rows, from 0 on (``None``: row i has depth i): the choice of the text's verify rule."""


@dataclass(frozen=True)
class HeadConfig:
    """What drafting knows of a draft head: fields of ``StreamConfig``'s names mean the same.

    Args:
        kind: the head's name, such as ``medusa``.
        num_streams: the most tokens that it guesses one after the other.
        stream_head: ``plain``: a guess depends on its depth alone; ``conditioned``: on its path.
        draft_vocabulary: number of tokens that it scores; 0: all.
        parameters: number of its own weights, without those that it shares with the target.
        own_rows: whether it keeps KV rows of its own, for which it has to read the prompt too.
    """

    kind: str
    num_streams: int
    stream_head: str
    draft_vocabulary: int = 0
    parameters: int = 0
    own_rows: bool = False

    mode: ClassVar[Mode] = "lossless"  # it touches nothing that the target computes
    pruner_rank: ClassVar[int] = 0  # and has no early exit


@dataclass(frozen=True, eq=False)
class AcceptedRows:
    """The rows of one sequence that a step of the target accepts, on the device.

    ``features`` are (places, h) of each boundary that the head reads, ``tokens`` and ``following``
    (places,) int32 the rows' own tokens and those after them, the last one being the target's.
    Places after the first ``count`` mean nothing.
    """

    features: tuple[mx.array, ...]
    tokens: mx.array
    following: mx.array
    count: mx.array

    @property
    def root(self) -> mx.array:
        """() int32, the token after the accepted rows: the next root."""
        return self.following[self.count - 1]


def accepted_rows(
    features: tuple[mx.array, ...],
    nodes: TreeNodes,
    predictions: mx.array,
    last: mx.array,
    tree: DraftTree,
) -> AcceptedRows:
    """Gather the accepted path of a tree from what there is at its nodes."""
    depth, tokens = int(tree.depths[-1]), nodes.tokens
    if not depth:
        return AcceptedRows(features, tokens[:1], predictions[:1], mx.array(1))
    on_path = nodes.ancestors[last]
    # Breadth first, a node's ancestors come before it, each in its own depth.
    path = mx.sort(mx.where(on_path, mx.arange(len(tokens)), len(tokens) - 1))[: depth + 1]
    count = on_path.sum()
    own = tokens[path]
    after = mx.concatenate([own[1:], own[:1]])
    following = mx.where(mx.arange(depth + 1) == count - 1, predictions[last], after)
    return AcceptedRows(tuple(one[path] for one in features), own, following, count)


class DraftHead(Protocol):
    """A head at work on one text."""

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        """Take in committed rows of the prompt: (rows,) int32, and (rows, h) of each boundary."""

    def follow(self, rows: AcceptedRows) -> None:
        """Take in the rows that a step accepts; ``commit`` then says how many there are."""

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array | None]:
        """Guess the tokens after the next root, on the device; this comes after ``follow``.

        ``rank`` chooses candidates from logits; ``expansion``, one entry fewer than there are
        depths to guess, is ``Plan.expand``, and ``width`` paths are ``LIKELIEST``. Returns tokens,
        log-probabilities and parents as in ``StreamGuesses``.
        """

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last ``follow``."""

    def trim(self, count: int) -> None:
        """Take back the last ``count`` committed rows."""


class MountedHead(Protocol):
    """The weights of a head, checked against a target."""

    @property
    def config(self) -> HeadConfig:
        """What drafting knows of the head."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The hidden states that it reads, see ``BorrowedModel.take_features``."""

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text, with the target, whose embedding and LM head a head may share."""


class OwnRows:
    """The KV rows of a head's own layer in one text; their number is their position.

    A step writes the rows of the accepted path after the committed ones, in as many places as the
    path may have, and drafted rows after these. How many of the places count, the host says
    afterwards; the next step overwrites the others.
    """

    def __init__(self) -> None:
        self._cache = KVCache()

    @property
    def count(self) -> int:
        return self._cache.offset

    def path(self) -> UncommittedRows:
        return UncommittedRows(self._cache, Rows(self.count))

    def drafts(self, positions: mx.array, sees: mx.array) -> UncommittedRows:
        """Make the stand-in for the KV cache in a pass over drafted rows at ``positions`` (rows,).

        ``sees`` (rows, after) bool: which of the rows after the committed ones each one sees: the
        path's places, earlier drafted rows, and these.
        """
        skip = sees.shape[1] - len(sees)
        return UncommittedRows(self._cache, Rows(positions[None], sees[None]), skip=skip)

    def evaluate(self) -> None:
        """Let the device compute the rows, which it otherwise might not before many steps."""
        mx.async_eval(self._cache.keys, self._cache.values)

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the newest path."""
        self._cache.offset += count

    def trim(self, count: int) -> None:
        """Take back the last ``count`` rows; there may be fewer, where a prompt was not read."""
        self._cache.offset -= min(count, self._cache.offset)


STEPS, LEAST = 64, 4
"""A head that fits its target has ``LEAST`` of its first ``STEPS`` best guesses right."""


class HeadWatch:
    """Counts how often a head's best guess is right at first, since a wrong head harms no text."""

    def __init__(self, name: str):
        self._name, self._left, self._right = name, STEPS, 0

    def judge(self, guesses: StreamGuesses, tokens: Sequence[int]) -> None:
        """Take in a head's guesses, and the tokens after them; notes once if too few are right."""
        guessed = guesses.after(()) if self._left and tokens else []
        if not guessed:
            return
        best, _ = max(guessed, key=lambda each: each[1])
        self._right += best == tokens[0]
        self._left -= 1
        if not self._left and self._right < LEAST:
            note(
                f"The {self._name} foresaw {self._right or 'none'} of {STEPS} tokens: unless this "
                "text is one that nobody could foresee, it was trained for another model"
            )
