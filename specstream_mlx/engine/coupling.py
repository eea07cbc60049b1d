"""Drafts under the noise that the target will draw with, weighed by how much that has helped.

A stream is unsure for two reasons: the target draws at random, which the noise settles, and the
stream cannot foresee the target, of which the noise says nothing. If a stream knew the target's
distribution, the drawn token would be the arg-max of ``log s + g``; if the target is sure and only
the stream is not, noise blurs its guesses. So candidates are ranked by ``log s + strength * g``,
and each text shows which strength is best.
"""

from collections.abc import Sequence

import mlx.core as mx

STRENGTHS = (0.0, 0.5, 1.0)
_DOUBT = 2.0  # nats by which the full noise must have done better before it is used
_MEMORY = 0.98  # factor on a token's weight with each later one: some 50 tokens count
_WORST = -9.0  # log-probability; no single token decides for a whole text


class Coupling:
    """The strength that has predicted a text best so far, judged by the first stream's guesses.

    One stream is enough, and a softmax over a vocabulary is dear on a CPU. Everything stays on the
    device.

    Args:
        strengths: factors of the noise; a single one learns nothing.
        steps: steps between a guess and the one whose first token it is of: 1 for streams, which
            guess what comes behind the step that they run in; 0 for who has read the text.
    """

    def __init__(self, strengths: Sequence[float] = STRENGTHS, steps: int = 1):
        self._steps = steps
        self._strengths = mx.array(list(strengths))
        self._merits = -_DOUBT * self._strengths  # log-likelihoods
        # (strengths, n) scores, and the tokens of their columns; None: the whole vocabulary.
        self._newest: tuple[mx.array, mx.array | None] | None = None
        self._open: tuple[mx.array, mx.array | None] | None = None  # of the step before

    def scores(
        self,
        logits: mx.array,
        gumbel: mx.array,
        learns: bool = True,
        ids: mx.array | None = None,
    ) -> mx.array:
        """Return scores (rows, n) of the tokens that the target may draw."""
        if learns and self._strengths.size > 1:
            self._newest = logits[0] + self._strengths[:, None] * gumbel[0], ids
        return logits + self._strengths[mx.argmax(self._merits)] * gumbel

    def learn(self, tokens: Sequence[int] | mx.array) -> None:
        """Judge the guesses of the first token that this step committed."""
        judged = self._open if self._steps else self._newest
        if judged is not None:
            scores, ids = judged
            log_probs = _scores_of(tokens[0], scores, ids) - mx.logsumexp(scores, axis=-1)
            self._merits = _MEMORY * self._merits + mx.maximum(log_probs, _WORST)
        self._open, self._newest = self._newest, None


def _scores_of(token: int | mx.array, scores: mx.array, ids: mx.array | None) -> mx.array:
    """Select a token's scores (strengths,); -inf if it is not among ``ids``."""
    if ids is None:
        return scores[:, token]
    return mx.where(ids == token, scores, -mx.inf).max(axis=-1)
