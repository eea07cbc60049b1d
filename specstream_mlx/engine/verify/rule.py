"""``greedy``, and what all verify rules have in common.

Every exact rule first gives each node one token, the target's own there, and then follows the
children that carry those tokens (``follow``). ``greedy`` takes the arg-max and ``keyed`` the token
that plain decoding draws there, so the text is plain decoding's whatever the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from ...errors import UserError
from ..guess import Candidates, best_tokens
from ..plan import DraftTree
from ..rows import TreeNodes
from ..sampling import NodeProcessors


@dataclass(frozen=True, eq=False)
class PathEnd:
    """The last accepted node of a tree, at ``depth`` () int32, whose streams guess."""

    tree: DraftTree
    depth: mx.array

    def places(self, rows: int, stream: int | None) -> tuple[mx.array, int]:
        """Return the guesses' positions, counted from the next token's, and a bound on them."""
        streams = mx.arange(rows) if stream is None else mx.full(rows, stream)
        last = rows - 1 if stream is None else stream
        return self.depth + 1 + streams, int(self.tree.depths[-1]) + 2 + last


class VerifyRule:
    """``greedy``: follow the target's own arg-maxes.

    Other rules derive from this one and replace the choice of a node's token, of the last accepted
    node, or of drafts.
    """

    name: ClassVar[str] = "greedy"
    draws: ClassVar[bool] = False  # whether the rule is for samplers that draw
    needs_probabilities: ClassVar[bool] = False  # whether the sampler must be a ``Sampling``
    draws_drafts: ClassVar[bool] = False  # if so, nothing but acceptance may depend on drafts

    def __init__(
        self,
        sampler: Sampler | None = None,
        processors: Sequence[LogitsProcessor] | None = None,
        prompt: Sequence[int] = (),
    ):
        self._processors = NodeProcessors(processors, prompt) if processors else None

    @property
    def is_greedy(self) -> bool:
        """Whether this is plain ``greedy``, which depends on a step's arrays alone."""
        return type(self) is VerifyRule and self._processors is None

    def verify(
        self, tree: DraftTree, nodes: TreeNodes, logits: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Judge a tree by the logits (m, vocab) of the kept ``nodes``.

        Returns the last accepted node among the kept ones, the target's token after each of these,
        the last one's being the correction or bonus token, and the processed logits.
        """
        logits = self.processed(tree, nodes.kept, logits)
        predictions = self.predictions(tree, nodes.kept, logits)
        return self._last(tree, nodes, logits, predictions), predictions, logits

    def processed(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        return logits if self._processors is None else self._processors(tree, kept, logits)

    def next_token(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Return the target's token (1,) after the text, and its processed logits (1, vocab)."""
        if self._processors is not None:
            logits = self._processors.root(logits)
        return self._token(logits), logits

    def predictions(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        return self._token(logits)

    def _token(self, logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1).astype(mx.int32)

    def _last(
        self, tree: DraftTree, nodes: TreeNodes, logits: mx.array, predictions: mx.array
    ) -> mx.array:
        return follow(nodes.tokens, nodes.parents, nodes.ancestors, predictions, nodes.in_play)

    def rank_guesses(
        self, logits: mx.array, width: int, end: PathEnd, ids: mx.array | None, stream: int | None
    ) -> Candidates:
        """Choose ``width`` candidates from logits (rows, n) of the last accepted node's streams.

        ``ids`` (n,) are the tokens of the columns; ``None``: all. ``stream`` is that of all rows,
        from 0 on; ``None``: row i is of stream i.
        """
        return best_tokens(logits, width, ids)

    def rank_drafts(self, logits: mx.array, place: int, width: int) -> Candidates:
        """Choose ``width`` candidates for a draft model, ``place`` tokens after the text's end.

        ``logits`` (rows, n) are of the first n tokens.
        """
        return best_tokens(logits, width)

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        if self._processors is not None:
            self._processors.commit(tokens)


def check_drawn(tokens: Sequence[int]) -> None:
    if min(tokens) < 0:
        raise UserError(
            "the sampler drew a token outside the vocabulary, expected one of its columns"
        )


def follow(
    tokens: mx.array,
    parents: mx.array,
    ancestors: mx.array,
    predictions: mx.array,
    in_play: mx.array | None = None,
) -> mx.array:
    """Follow the target's own tokens from the root as far as drafted children match them.

    ``tokens`` are (n,) or (.., n), ``predictions`` (.., n). Returns the last accepted node (..).
    """
    accepted = tokens == predictions[..., mx.maximum(parents, 0)]
    length = accepted_lengths(accepted, ancestors, in_play)
    return mx.argmax(length, axis=-1).astype(mx.int32)


def accepted_lengths(accepted: mx.array, ancestors: mx.array, in_play: mx.array | None) -> mx.array:
    """Return the number of nodes of each path (.., n), 0 if one is refused."""
    refused = ~accepted
    if in_play is not None:
        refused = refused | ~in_play
    refused = refused & (mx.arange(accepted.shape[-1]) != 0)
    path_refused = (ancestors & refused[..., None, :]).any(axis=-1)
    return mx.where(path_refused, 0, ancestors.sum(axis=-1))
