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
        self._strengths = mx.array(strengths)
        self._merits = -_DOUBT * self._strengths  # log-likelihoods
        self._newest: mx.array | None = None  # (strengths, vocab) scores of this step
        self._open: mx.array | None = None  # the same of the step before, not judged yet
        self._newest_ids: mx.array | None = None  # the tokens that they are of
        self._open_ids: mx.array | None = None

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
            self._newest, self._newest_ids = logits[0] + self._strengths[:, None] * gumbel[0], ids
        return logits + self._strengths[mx.argmax(self._merits)] * gumbel

    def _scores_of(self, token: int | mx.array) -> mx.array:
        """(strengths,) the open scores of a token; -inf for one that the streams cannot draft."""
        if self._open_ids is None:
            return self._open[:, token]
        return mx.where(self._open_ids == token, self._open, -mx.inf).max(axis=-1)

    def learn(self, tokens: Sequence[int] | mx.array) -> None:
        """Judge the guesses of the step before by the first token that this step committed."""
        if self._open is not None:
            found = self._scores_of(tokens[0]) - mx.logsumexp(self._open, axis=-1)
            self._merits = _MEMORY * self._merits + mx.maximum(found, _WORST)
        self._open, self._newest = self._newest, None
        self._open_ids = self._newest_ids
