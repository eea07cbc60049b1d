"""``keyed``: follow the tokens that plain decoding draws with the same seed."""

from collections.abc import Sequence
from typing import ClassVar

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from ..guess import Candidates, best_tokens, normalized
from ..noise import STRENGTHS, Coupling, Noise
from ..plan import DraftTree
from ..sampling import KeyedSampler, drawn_tokens, random_seed, sampling_of
from .rule import PathEnd, VerifyRule


class KeyedRule(VerifyRule):
    """``keyed``: tokens and guesses are drawn with the noise of their position in the text.

    A ``sampler`` other than a ``keyed_sampler`` draws under a seed from mlx's random state.
    """

    name = "keyed"
    draws = True
    strengths: ClassVar[Sequence[float]] = STRENGTHS

    def __init__(
        self,
        sampler: Sampler,
        processors: Sequence[LogitsProcessor] | None = None,
        prompt: Sequence[int] = (),
    ):
        super().__init__(sampler, processors, prompt)
        if not isinstance(sampler, KeyedSampler):
            sampler = KeyedSampler(random_seed(), sampler)
        self._sampler, self._noise = sampler.sampler, Noise(sampler.seed)
        self._sampling = sampling_of(sampler)
        self._position = 0  # of the next token: the number of tokens drawn
        self._coupling = Coupling(self.strengths)
        self._drafts_coupling = Coupling(self.strengths, steps=0)
        self._vocab_size = 0

    def _log_probs(self, logits: mx.array, coins: mx.array | None) -> mx.array:
        assert self._sampling is not None
        return self._sampling.log_probs(logits, coins)

    def processed(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        self._vocab_size = logits.shape[-1]
        return super().processed(tree, kept, logits)

    def predictions(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        log_probs = normalized(logits)
        return drawn_tokens(
            self._sampler, self._noise, log_probs, self._position, tree.depths, kept
        )

    def _token(self, logits: mx.array) -> mx.array:
        self._vocab_size = logits.shape[-1]
        return drawn_tokens(self._sampler, self._noise, normalized(logits), self._position)

    def rank_guesses(
        self, logits: mx.array, width: int, end: PathEnd, ids: mx.array | None, stream: int | None
    ) -> Candidates:
        if self._sampling is None:  # a function, whose way to draw is unknown
            return super().rank_guesses(logits, width, end, ids, stream)
        places, count = end.places(len(logits), stream)
        gumbel = self._noise.gumbel(self._position, count, self._vocab_size)[places]
        if ids is not None:
            gumbel = gumbel[:, ids]
        logits = logits.astype(mx.float32) * self._sampling.inverse_temp
        scores = self._coupling.scores(logits, gumbel, learns=not stream, ids=ids)
        return best_tokens(scores, width, ids)

    def rank_drafts(self, logits: mx.array, place: int, width: int) -> Candidates:
        if self._sampling is None or not self._vocab_size:
            return super().rank_drafts(logits, place, width)
        gumbel = self._noise.gumbel(self._position, place + 1, self._vocab_size)[place:]
        logits = logits.astype(mx.float32) * self._sampling.inverse_temp
        gumbel = gumbel[:, : logits.shape[-1]]
        scores = self._drafts_coupling.scores(logits, gumbel, learns=not place)
        return best_tokens(scores, width)

    def _coins(self, tree: DraftTree, kept: mx.array | None) -> mx.array:
        coins = self._noise.coins(self._position, int(tree.depths[-1]) + 1)
        places = mx.array(tree.depths)
        return coins[places if kept is None else places[kept]]

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        super().commit(tokens)
        self._position += len(tokens)
        self._noise.forget(self._position)
        self._coupling.learn(tokens)
        self._drafts_coupling.learn(tokens)
