"""Draft heads, which guess from the target's hidden states, instead of streams.

EAGLE-3's is one (``heads.eagle3``), and ``mount_head`` takes any other ``MountedHead``. Heads
touch nothing that the target computes. A step stays on the device from the target's pass to the
guesses: a head knows which nodes were accepted, and how many, as arrays alone. The host says the
number afterwards, by ``commit``.
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
"""``VerifyRule.rank_guesses`` of one text: by logits, the tokens of their columns, and stream."""


@dataclass(frozen=True)
class HeadConfig:
    """The facts about a draft head that drafting uses; fields mean what ``StreamConfig``'s do."""

    kind: str  # its name, such as ``medusa``
    num_streams: int  # the most tokens that it guesses one after the other
    stream_head: str  # ``plain``: a guess depends on its depth; ``conditioned``: on its path
    draft_vocabulary: int = 0  # number of tokens that it scores; 0: all
    parameters: int = 0  # its own, without those that it shares with the target
    own_rows: bool = False  # whether it keeps KV rows, for which it has to read the prompt too

    mode: ClassVar[Mode] = "lossless"  # it touches nothing that the target computes
    pruner_rank: ClassVar[int] = 0  # and has no early exit


@dataclass(frozen=True, eq=False)
class AcceptedRows:
    """The rows of one sequence that a step accepts, on the device; after ``count`` any others."""

    features: tuple[mx.array, ...]  # (places, h) of each boundary that the head reads
    tokens: mx.array  # (places,)
    following: mx.array  # (places,), the tokens after them, the last one being the target's
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
    depth, tokens = int(tree.depths[-1]), nodes.tokens
    if not depth:
        return AcceptedRows(features, tokens[:1], predictions[:1], mx.array(1))
    on_path = nodes.ancestors[last]
    # Breadth first, a node's ancestors come before it, each in its own depth.
    path = mx.sort(mx.where(on_path, mx.arange(len(tokens)), len(tokens) - 1))[: depth + 1]
    count = on_path.sum()
    accepted = tokens[path]
    after = mx.concatenate([accepted[1:], accepted[:1]])
    following = mx.where(mx.arange(depth + 1) == count - 1, predictions[last], after)
    return AcceptedRows(tuple(rows[path] for rows in features), accepted, following, count)


class DraftHead(Protocol):
    """A head at work on one text."""

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        """Take in committed rows of the prompt, and (rows, h) of each boundary."""

    def follow(self, rows: AcceptedRows) -> None:
        """Take in the rows that a step accepts; ``commit`` then says how many there are."""

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array | None]:
        """Guess the tokens after the next root; this comes after ``follow``.

        ``expansion``, one entry fewer than there are depths to guess, is ``Plan.expand``. Returns
        the arrays of ``StreamGuesses``.
        """

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last ``follow``."""

    def trim(self, count: int) -> None:
        """Take back the last ``count`` committed rows."""


class MountedHead(Protocol):
    """The weights of a head, checked against a target."""

    @property
    def config(self) -> HeadConfig: ...

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The hidden states that it reads, see ``BorrowedModel.take_features``."""

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text, with the target, whose embedding and LM head a head may share."""


class OwnRows:
    """The KV rows of a head's own layer in one text.

    A step writes the rows of the accepted path after the committed ones, in as many places as the
    path may have, and drafted rows after these; the next step overwrites what ``commit`` left out.
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

        ``sees`` (rows, after) bool: the path's places, earlier drafted rows and these that each
        one sees.
        """
        skip = sees.shape[1] - len(sees)
        return UncommittedRows(self._cache, Rows(positions[None], sees[None]), skip=skip)

    def evaluate(self) -> None:
        """Compute the rows now; otherwise they might stay unevaluated for many steps."""
        mx.async_eval(self._cache.keys, self._cache.values)

    def commit(self, count: int) -> None:
        self._cache.offset += count

    def trim(self, count: int) -> None:
        """Take back the last ``count`` rows; there may be fewer, where a prompt was not read."""
        self._cache.offset -= min(count, self._cache.offset)


STEPS, LEAST = 64, 4
"""A head that fits its target has ``LEAST`` of its first ``STEPS`` best guesses right."""


class HeadWatch:
    """Counts how often a head's first guesses are right: a wrong head shows in no text."""

    def __init__(self, name: str):
        self._name, self._left, self._right = name, STEPS, 0

    def judge(self, guesses: StreamGuesses, tokens: Sequence[int]) -> None:
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
