"""Drafts under the noise that the target will draw with, believed as far as that has paid.

What a stream does not know has two parts: the target's own randomness, which the noise settles, and
all that the stream cannot foresee, of which the noise says nothing. With a stream that knows all
there is to know, the drawn token is the arg-max of ``log s + g``; with one that is merely unsure of
a target that is not, noise only blurs its guesses. Between them the token is some way along
``log s + strength * g``, and how far, each text shows.
"""

from collections.abc import Sequence

import mlx.core as mx

STRENGTHS = (0.0, 0.5, 1.0)
_DOUBT = 2.0  # nats by which the whole noise must have done better before it is believed
_MEMORY = 0.98  # of a token's weight, at each later one: some 50 tokens
_WORST = -9.0  # log-probability; no single token decides for a whole text


class Coupling:
    """The strength that has foretold a text best so far, judged by the first stream's guesses.

    One stream is enough, and a softmax over a vocabulary is dear on a CPU. All of it stays on the
    device.

    Args:
        strengths: factors of the noise; a single one learns nothing.
    """

    def __init__(self, strengths: Sequence[float] = STRENGTHS):
        self._strengths = mx.array(list(strengths))
        self._merits = -_DOUBT * self._strengths  # log-likelihoods
        # (strengths, n) scores, and the n tokens that they are of; None: the whole vocabulary.
        self._newest: tuple[mx.array, mx.array | None] | None = None
        self._open: tuple[mx.array, mx.array | None] | None = None  # of the step before

    def scores(
        self,
        logits: mx.array,
        gumbel: mx.array,
        learns: bool = True,
        ids: mx.array | None = None,
    ) -> mx.array:
        """(rows, n) logits of what the target will draw.

        Args:
            logits: (rows, n) of the streams, at the target's temperature.
            gumbel: (rows, n) the noise that the target will draw with.
            learns: whether the first row is the first stream's, which the strength is judged by.
            ids: (n,) the tokens that they are of; ``None``: of the whole vocabulary.
        """
        if learns and self._strengths.size > 1:
            self._newest = logits[0] + self._strengths[:, None] * gumbel[0], ids
        return logits + self._strengths[mx.argmax(self._merits)] * gumbel

    def learn(self, tokens: Sequence[int] | mx.array) -> None:
        """Judge the guesses of the step before by the first token that this step committed."""
        if self._open is not None:
            scores, ids = self._open
            found = _scores_of(tokens[0], scores, ids) - mx.logsumexp(scores, axis=-1)
            self._merits = _MEMORY * self._merits + mx.maximum(found, _WORST)
        self._open, self._newest = self._newest, None


def _scores_of(token: int | mx.array, scores: mx.array, ids: mx.array | None) -> mx.array:
    """(strengths,) of a token among the scores of ``ids``; -inf for one that is not there."""
    if ids is None:
        return scores[:, token]
    return mx.where(ids == token, scores, -mx.inf).max(axis=-1)
