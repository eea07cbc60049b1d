"""Randomness from a key: the draw of each token follows from the seed and its position.

No draw depends on how many came before it, so drafts, trees and batches change none.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Literal

import mlx.core as mx

from ..errors import UserError

MOST_SEEDS = 2**64

Use = Literal["token", "coin", "draft", "test"]
"""The token itself, XTC's coin, or drafts and tests of the verify rule ``rejection``."""

_USES: dict[Use, int] = {"token": 0, "coin": 1, "draft": 2, "test": 3}
_MASK = MOST_SEEDS - 1
_STEP = 0x9E3779B97F4A7C15
_LOWEST = -8.0  # of Gumbel noise, P < 1e-1000; MLX's is -inf where its uniform number is 0


class Noise:
    """The randomness of one generation, by position; the first token drawn has position 0.

    Keys are mixed on the host, so nothing waits for the device. Gumbel noise is kept until
    ``forget``, since the token of a position may be drafted and tested in several steps.
    """

    def __init__(self, seed: int):
        if not isinstance(seed, Integral) or not 0 <= seed < MOST_SEEDS:
            raise UserError(f"seed is {seed!r}, expected an integer of at least 0 and below 2**64")
        self._stem: int = _mixed(int(seed) + _STEP)
        self._gumbel: dict[int, mx.array] = {}

    def number(self, position: int, use: Use = "token") -> int:
        """Return 64 random bits, different for every position and use."""
        return _mixed(self._stem + (len(_USES) * position + _USES[use] + 1) * _STEP)

    def key(self, position: int, use: Use) -> mx.array:
        return mx.random.key(self.number(position, use))

    def gumbel(self, first: int, count: int, vocab_size: int) -> mx.array:
        """Return Gumbel noise (count, vocab) of the positions from ``first`` on."""
        for position in range(first, first + count):
            if position not in self._gumbel:
                made = mx.random.gumbel((vocab_size,), key=self.key(position, "token"))
                self._gumbel[position] = mx.maximum(made, _LOWEST)
        return mx.stack([self._gumbel[position] for position in range(first, first + count)])

    def coins(self, first: int, count: int) -> mx.array:
        """Return uniform numbers (count, 1) of the positions from ``first`` on."""
        positions = range(first, first + count)
        return mx.array([[self.number(position, "coin") / MOST_SEEDS] for position in positions])

    def forget(self, position: int) -> None:
        for passed in [known for known in self._gumbel if known < position]:
            del self._gumbel[passed]


def _mixed(number: int) -> int:
    """Mix the lowest 64 bits, as splitmix64 does (Steele, Lea and Flood 2014)."""
    number &= _MASK
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


# Drafts under the noise ------------------------------------------------------------------------

# A stream is unsure for two reasons: the target draws at random, which the noise settles, and the
# stream cannot foresee the target, of which the noise says nothing. If a stream knew the target's
# distribution, the drawn token would be the arg-max of ``log s + g``; if the target is sure and
# only the stream is not, noise blurs its guesses. So candidates are ranked by
# ``log s + strength * g``, and each text shows which strength is best.

STRENGTHS = (0.0, 0.5, 1.0)
_DOUBT = 2.0  # nats by which the full noise must have done better before it is used
_MEMORY = 0.98  # factor on a token's weight with each later one: some 50 tokens count
_WORST = -9.0  # log-probability; no single token decides for a whole text


class Coupling:
    """The strength that has predicted a text best so far, judged by the first stream's guesses.

    Everything stays on the device. A single one of ``strengths`` learns nothing. ``steps`` lie
    between a guess and the step whose first token it is of: 1 for streams, which guess what comes
    after the step that they run in; 0 for a draft model, which has read the text.
    """

    def __init__(self, strengths: Sequence[float] = STRENGTHS, steps: int = 1):
        self._steps = steps
        self._strengths = mx.array(list(strengths))
        self._merits = -_DOUBT * self._strengths  # log-likelihoods
        # (strengths, n) scores, and the tokens of their columns; None: the whole vocabulary.
        self._newest: tuple[mx.array, mx.array | None] | None = None
        self._open: tuple[mx.array, mx.array | None] | None = None  # of the step before

    def scores(
        self, logits: mx.array, gumbel: mx.array, learns: bool = True, ids: mx.array | None = None
    ) -> mx.array:
        if learns and self._strengths.size > 1:
            self._newest = logits[0] + self._strengths[:, None] * gumbel[0], ids
        return logits + self._strengths[mx.argmax(self._merits)] * gumbel

    def learn(self, tokens: Sequence[int] | mx.array) -> None:
        """Judge the guesses of the first token that this step committed."""
        judged = self._open if self._steps else self._newest
        if judged is not None:
            scores, ids = judged
            if ids is not None:
                score = mx.where(ids == tokens[0], scores, -mx.inf).max(axis=-1)
            elif self._steps:
                score = scores[:, tokens[0]]
            else:  # a draft model's, which may have fewer tokens than the target
                known = mx.minimum(tokens[0], scores.shape[-1] - 1)
                score = mx.where(known == tokens[0], scores[:, known], -mx.inf)
            log_probs = score - mx.logsumexp(scores, axis=-1)
            self._merits = _MEMORY * self._merits + mx.maximum(log_probs, _WORST)
        self._open, self._newest = self._newest, None
