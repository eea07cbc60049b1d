"""Drafts under the noise that the target will draw with, believed as far as that has paid.

What a stream does not know has two parts: the target's own randomness, which the noise settles, and
all that the stream cannot foresee, of which the noise says nothing. With a stream that knows all
there is to know, the drawn token is the arg-max of ``log s + g``; with one that is merely unsure of
a target that is not, noise only blurs its guesses. Between them the token is some way along
``log s + strength * g``, and how far, each text shows.
"""

from collections.abc import Sequence

import mlx.core as mx

from .sampling import normalized

STRENGTHS = (0.0, 0.25, 0.5, 1.0)
_MEMORY = 0.98  # of a token's weight, at each later one: some 50 tokens
_WORST = -9.0  # log-probability; no single token decides for a whole text


class Coupling:
    """A mixture over strengths, for each stream by how well they have foretold the text so far.

    All of it stays on the device.

    Args:
        strengths: factors of the noise; a single one learns nothing.
    """

    def __init__(self, strengths: Sequence[float] = STRENGTHS):
        self._strengths = mx.array(strengths)[:, None, None]
        self._merits: mx.array | None = None  # (strengths, gamma) log-likelihoods
        self._newest: mx.array | None = None  # (strengths, gamma, vocab), of this step
        self._open: mx.array | None = None  # the same of the step before, not judged yet

    def guesses(self, log_probs: mx.array, gumbel: mx.array) -> mx.array:
        """(gamma, vocab) log-probabilities that the target will draw a token.

        Args:
            log_probs: (gamma, vocab) of the streams, at the target's temperature.
            gumbel: (gamma, vocab) the noise that the target will draw with.
        """
        self._newest = normalized(log_probs + self._strengths * gumbel)
        if len(self._newest) == 1:
            return self._newest[0]
        if self._merits is None:
            self._merits = mx.zeros(self._newest.shape[:2])
        weights = normalized(self._merits.T).T
        return mx.logsumexp(self._newest + weights[..., None], axis=0)

    def learn(self, tokens: Sequence[int] | mx.array) -> None:
        """Judge the guesses of the step before by the tokens that this step committed."""
        if self._open is not None and self._merits is not None:
            known = min(len(tokens), self._open.shape[1])
            places = mx.array(tokens[:known])[None, :, None]
            found = mx.take_along_axis(self._open[:, :known], places, axis=-1)[..., 0]
            found = mx.maximum(found, _WORST)
            rest = self._merits[:, known:]
            self._merits = mx.concatenate([_MEMORY * self._merits[:, :known] + found, rest], axis=1)
        self._open, self._newest = self._newest, None
