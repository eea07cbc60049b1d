"""Draft heads: what guesses from the target's hidden states, beside the target or behind it.

EAGLE-3's is one (``drafting.eagle3``), and ``mount_head`` takes any other ``MountedHead``
(``benchmarks/rivals`` has Medusa's, Hydra's and more). Heads are trained for a target, touch
nothing that it computes, and draft what streams would: candidates with log-probabilities, by depth
or by path. So trees, lookup and the rule take their guesses as they take the streams'.

A step stays on the device from the target's pass to the guesses: which nodes were accepted, and how
many, a head knows as arrays alone. The host tells it the number afterwards, by ``commit``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from ..errors import Mode
from ..terminal.notes import note
from .borrowed_model import BorrowedModel
from .guess import StreamGuesses
from .kv import UncommittedRows
from .rows import Rows

Candidates = tuple[mx.array, mx.array]
"""(rows, k) token ids, best first, and their log-probabilities."""

Rank = Callable[[mx.array, mx.array | None, int | None], Candidates]
"""Function of logits (rows, n), the tokens (n,) of their columns (``None``: all tokens) and the
depth of all rows, from 0 on (``None``: row i has depth i): the choice of the text's verify rule."""


@dataclass(frozen=True)
class HeadConfig:
    """What drafting knows of a draft head: fields of ``StreamConfig``'s names mean the same.

    Args:
        kind: the head's name, such as ``medusa``.
        num_streams: the most tokens that it guesses one behind the other.
        stream_head: ``plain``: a guess depends on its depth alone; ``conditioned``: on its path.
        draft_vocabulary: number of tokens that it scores; 0: all.
        parameters: number of its own weights; those that it shares with the target are not counted.
        own_rows: whether it keeps KV rows of its own, for which it has to read the prompt too.
    """

    kind: str
    num_streams: int
    stream_head: str
    draft_vocabulary: int = 0
    parameters: int = 0
    own_rows: bool = False

    @property
    def mode(self) -> Mode:
        """``lossless``: a head touches nothing that the target computes."""
        return "lossless"

    @property
    def pruner_rank(self) -> int:
        """0: there is no early exit beside a head."""
        return 0


@dataclass(frozen=True, eq=False)
class AcceptedRows:
    """The rows of one text that a step of the target accepts, on the device.

    Where a step has more places than accepted rows, what lies behind these means nothing.

    Attributes:
        features: (places, h) of each boundary that the head asked for.
        tokens: (places,) int32 the rows' own tokens.
        following: (places,) int32 the token behind each row; behind the last one, the target's own.
        count: () int32, the number of accepted rows, at least 1.
    """

    features: tuple[mx.array, ...]
    tokens: mx.array
    following: mx.array
    count: mx.array

    @property
    def root(self) -> mx.array:
        """() int32, the token behind the accepted rows: the next root."""
        return self.following[self.count - 1]


class DraftHead(Protocol):
    """A head at work on one text."""

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        """Take in committed rows of the prompt.

        Args:
            tokens: (rows,) int32.
            features: (rows, h) of each boundary.
        """

    def follow(self, rows: AcceptedRows) -> None:
        """Take in the rows that a step accepts; ``commit`` then says how many there are."""

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, mx.array | None]:
        """Guess the tokens behind the next root; this comes after ``follow``.

        Args:
            rank: function that chooses candidates from logits.
            expansion: see ``Plan.expand``; one entry fewer than there are depths to guess.
            width: number of paths that ``LIKELIEST`` expands.

        Returns:
            Tokens, log-probabilities and parents as in ``StreamGuesses``, on the device.
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
        """Begin a text.

        Args:
            model: runs the target, whose embedding and LM head a head may share.
        """


class WithoutRows:
    """What heads have in common that keep nothing of earlier rows."""

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        """Do nothing."""

    def commit(self, count: int) -> None:
        """Do nothing."""

    def trim(self, count: int) -> None:
        """Do nothing."""


class OwnRows:
    """The KV rows of a head's own layer in one text.

    A step writes the rows of the accepted path behind the committed ones, in as many places as the
    path may have, and drafted rows behind these. How many of the places count, the host says
    afterwards; the next step writes over the others. Rows are counted from the first one that the
    head has read, and their number is their position.
    """

    def __init__(self) -> None:
        self._cache = KVCache()

    @property
    def count(self) -> int:
        """The number of committed rows."""
        return self._cache.offset

    def path(self) -> UncommittedRows:
        """Make the stand-in for the KV cache in a pass over the places of an accepted path."""
        return UncommittedRows(self._cache, Rows(self.count))

    def drafts(self, positions: mx.array, sees: mx.array) -> UncommittedRows:
        """Make the stand-in for the KV cache in a pass over drafted rows.

        Args:
            positions: (rows,) int32, of the drafted rows.
            sees: (rows, behind) bool, which of the rows behind the committed ones each one sees:
                the path's places, earlier drafted rows, and these.
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


STEPS = 64
LEAST = 4
"""Steps of ``STEPS`` in which the best guess of a head that fits is right; a chain with fewer right
first guesses writes 1.0 tokens a call, rounded."""


class HeadWatch:
    """Counts how often a head's best guess is right in its first steps, over all texts.

    A head that was trained for the target is right every few tokens, on nearly any text. One that
    hardly ever is has been trained for another target, or is read otherwise than it was trained.
    That harms no text, so nothing else would tell.

    Args:
        name: name of the head, for people.
        tell: function that says a sentence.
    """

    def __init__(self, name: str, tell: Callable[[str], None] = note):
        self._name, self._tell = name, tell
        self._left, self._right = STEPS, 0

    def judge(self, guesses: StreamGuesses, tokens: Sequence[int]) -> None:
        """Take in a head's guesses, and the tokens behind them; says once if too few are right."""
        guessed = guesses.behind(()) if self._left and tokens else []
        if not guessed:
            return
        best, _ = max(guessed, key=lambda each: each[1])
        self._right += best == tokens[0]
        self._left -= 1
        if not self._left and self._right < LEAST:
            self._tell(
                f"The {self._name} foresaw {self._right or 'none'} of {STEPS} tokens: unless this "
                "text is one that nobody could foresee, it was trained for another model"
            )


def accepted_rows(
    features: Sequence[mx.array],
    tokens: mx.array,
    ancestors: mx.array,
    predictions: mx.array,
    last: mx.array,
    depth: int,
) -> AcceptedRows:
    """Gather the accepted path of a tree.

    Args:
        features: (n, h) of each boundary, at the nodes.
        tokens: (n,) int32 the nodes' tokens.
        ancestors: (n, n) bool, ancestors-or-self.
        predictions: (n,) int32 the target's token after each node.
        last: () int32 the last accepted node.
        depth: the tree's, which bounds the path's length.
    """
    if not depth:
        return AcceptedRows(tuple(features), tokens[:1], predictions[:1], mx.array(1))
    nodes = mx.arange(len(tokens))
    on_path = ancestors[last]
    # Breadth first, a node's ancestors come before it, each in its own depth.
    path = mx.sort(mx.where(on_path, nodes, len(tokens) - 1))[: depth + 1]
    count = on_path.sum()
    own = tokens[path]
    behind = mx.concatenate([own[1:], own[:1]])
    places = mx.arange(depth + 1)
    following = mx.where(places == count - 1, predictions[last], behind)
    return AcceptedRows(tuple(one[path] for one in features), own, following, count)
