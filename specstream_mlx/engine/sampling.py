"""mlx_lm's filters and logits processors on a tree, and draws that follow from a key."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import (
    LogitsProcessor,
    Sampler,
    apply_min_p,
    apply_top_k,
    apply_top_p,
    apply_xtc,
    categorical_sampling,
    greedy_sampler,
)

from ..errors import UserError, shown
from ..options import SamplerOptions, check_arguments
from .guess import normalized
from .noise import Noise
from .plan import DraftTree
from .prune import rows_of_all

_LEAST_TOP_P = 1e-30  # smaller ones are 0 in float32, at which mlx_lm drops all tokens


@dataclass(frozen=True)
class Sampling(SamplerOptions):
    """A sampler like that of mlx_lm's ``make_sampler`` which also knows its probabilities.

    Called by itself it draws from mlx's random state as ``make_sampler``'s does, XTC apart: its
    coin is tossed here for each row. Within a generation it is keyed, see ``keyed_sampler``. A
    ``top_p`` of 0 is the likeliest token, where ``make_sampler``'s is all of them.
    """

    xtc_special_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_arguments(**vars(self))

    @property
    def takes_arg_max(self) -> bool:
        return self.temp == 0 or self.top_p == 0

    @property
    def inverse_temp(self) -> float:
        """What logits are multiplied with, small enough that the products are finite."""
        return min(1.0 / self.temp, 1e30)

    def check(self, vocab_size: int) -> None:
        for name in ("top_k", "min_tokens_to_keep"):
            if getattr(self, name) >= vocab_size:
                raise UserError(
                    f"{name} is {getattr(self, name)}, expected less than the vocabulary's "
                    f"{vocab_size}"
                )
        for token in self.xtc_special_tokens if self.xtc_probability else ():
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"xtc_special_tokens hold token {token}, the model's are 0 to {vocab_size - 1}"
                )

    def __call__(self, log_probs: mx.array) -> mx.array:
        if self.takes_arg_max:
            return greedy_sampler(log_probs)
        return categorical_sampling(self._filtered(log_probs), self.temp)

    def scores(self, log_probs: mx.array, gumbel: mx.array, coins: mx.array) -> mx.array:
        """Return scores (rows, vocab) whose arg-max is the token drawn (Gumbel-max)."""
        return self._scaled(log_probs, coins) + gumbel

    def log_probs(self, logits: mx.array, coins: mx.array | None = None) -> mx.array:
        """Return log-probabilities (rows, vocab) of the draws; needs ``temp`` above 0."""
        return normalized(self._scaled(normalized(logits), coins))

    def _scaled(self, log_probs: mx.array, coins: mx.array | None) -> mx.array:
        return self._filtered(log_probs, coins).astype(mx.float32) * self.inverse_temp

    def _filtered(self, log_probs: mx.array, coins: mx.array | None = None) -> mx.array:
        if self.top_p < 1:
            log_probs = apply_top_p(log_probs, max(self.top_p, _LEAST_TOP_P))
        if self.min_p:
            log_probs = apply_min_p(log_probs, self.min_p, self.min_tokens_to_keep)
        if self.xtc_probability:
            special = list(self.xtc_special_tokens)
            excluded = apply_xtc(log_probs, 1.0, self.xtc_threshold, special)
            if coins is None:
                coins = mx.random.uniform(shape=(*log_probs.shape[:-1], 1))
            log_probs = mx.where(coins > self.xtc_probability, log_probs, excluded)
        if self.top_k:
            log_probs = apply_top_k(log_probs, self.top_k)
        return log_probs


@dataclass(eq=False)
class KeyedSampler:
    """A sampler whose draws follow from a seed and the number of calls: see ``keyed_sampler``."""

    seed: int
    sampler: Sampler
    drawn: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._noise = Noise(self.seed)

    def __call__(self, log_probs: mx.array) -> mx.array:
        if log_probs.shape[0] != 1:
            raise UserError(
                f"a keyed_sampler was given {log_probs.shape[0]} rows, expected one: each text of "
                "a batch needs a keyed_sampler of its own"
            )
        self._noise.forget(self.drawn)
        self.drawn += 1
        if takes_arg_max(self.sampler):
            return greedy_sampler(log_probs)
        return drawn_tokens(self.sampler, self._noise, log_probs, self.drawn - 1)

    def scores(self, log_probs: mx.array, position: int) -> mx.array:
        """Return scores (1, vocab) whose arg-max is drawn; ``sampler`` must be a ``Sampling``."""
        assert isinstance(self.sampler, Sampling)
        gumbel = self._noise.gumbel(position, 1, log_probs.shape[-1])
        return self.sampler.scores(log_probs, gumbel, self._noise.coins(position, 1))


def keyed_sampler(
    seed: int, temp: float = 1.0, *, sampler: Sampler | None = None, **filters: Any
) -> KeyedSampler:
    """Make a sampler that draws the same text again wherever the same model is decoded.

    A text depends on prompt, model and seed, and not on drafts, trees, caches, batches or the
    program that decodes it. For ``mlx_lm.stream_generate`` make a fresh one for each generation: it
    counts its calls. Give each text of a batch, and each turn of a conversation, another seed.

    Args:
        seed: an integer of at least 0 and below 2**64.
        temp: temperature; 0 takes the arg-max.
        sampler: a function to use instead of ``temp`` and filters, such as
            ``make_sampler(temp=0.8)``, called with one row at a time.
        **filters: further fields of ``Sampling``, such as ``top_p``.

    Raises:
        UserError: a value out of range, or ``sampler`` with a temperature or filters.
    """
    if sampler is None:
        return KeyedSampler(seed, Sampling(temp, **filters))
    if filters or temp != 1.0:
        given = ", ".join(filters) or "temp"
        raise UserError(f"keyed_sampler was given sampler and {given}, expected one of them")
    return KeyedSampler(seed, sampler)


def drawn_tokens(
    sampler: Sampler,
    noise: Noise,
    log_probs: mx.array,
    first: int,
    depths: np.ndarray | None = None,
    kept: mx.array | None = None,
) -> mx.array:
    """Draw tokens (m,) after the nodes of a tree, each with the noise of its depth.

    ``first`` is the position of the token after the root. For a function in place of ``Sampling``
    mlx's random state is seeded for each row's position.
    """
    depths = np.zeros(1, np.int32) if depths is None else depths
    if not isinstance(sampler, Sampling):
        log_probs = rows_of_all(log_probs, kept, len(depths))
        drawn = _drawn_by_function(sampler, noise, log_probs, first + depths)
        return drawn if kept is None else drawn[kept]
    count = int(depths[-1]) + 1
    gumbel, coins = noise.gumbel(first, count, log_probs.shape[-1]), noise.coins(first, count)
    if len(depths) > 1:
        places = mx.array(depths) if kept is None else mx.array(depths)[kept]
        gumbel, coins = gumbel[places], coins[places]
    return mx.argmax(sampler.scores(log_probs, gumbel, coins), axis=-1).astype(mx.int32)


def _drawn_by_function(
    sampler: Sampler, noise: Noise, log_probs: mx.array, positions: np.ndarray
) -> mx.array:
    """Draw (rows,) int32 tokens, -1 where one is outside the vocabulary."""
    high, low = np.array(cast(list[mx.array], mx.random.state)[0]).tolist()
    tokens = []
    try:
        for row, position in enumerate(positions.tolist()):
            mx.random.seed(noise.number(position))
            token = sampler(log_probs[row : row + 1])
            if not isinstance(token, mx.array) or token.size != 1:
                raise UserError(
                    f"the sampler returned {shown(token)}, expected an mx.array of one token"
                )
            tokens.append(token.reshape(1))
    finally:
        mx.random.seed(high << 32 | low)
    drawn = mx.concatenate(tokens)
    # -1 is harmless on the device, where an index out of bounds would end the process.
    return mx.where((drawn >= 0) & (drawn < log_probs.shape[-1]), drawn.astype(mx.int32), -1)


def random_seed() -> int:
    """Draw a seed from mlx's random state, so that ``mx.random.seed`` repeats it."""
    seed = 0
    for part in np.array(mx.random.randint(0, 1 << 16, (4,))).tolist():
        seed = seed << 16 | part
    return seed


def takes_arg_max(sampler: Sampler | None) -> bool:
    """Check if a sampler is known to take the arg-max."""
    inner = sampler.sampler if isinstance(sampler, KeyedSampler) else sampler
    if isinstance(inner, Sampling):
        return inner.takes_arg_max
    return inner is None or inner is greedy_sampler


def sampling_of(sampler: Sampler | None) -> Sampling | None:
    """Return the ``Sampling`` that a sampler is or wraps, if any."""
    inner = sampler.sampler if isinstance(sampler, KeyedSampler) else sampler
    return inner if isinstance(inner, Sampling) else None


_is_draft = ContextVar("is_draft", default=False)


def is_draft() -> bool:
    """Tell a logits processor whether the last of its tokens is a draft's, not yet accepted."""
    return _is_draft.get()


class NodeProcessors:
    """mlx_lm's logits processors on a tree: each node's logits with the tokens up to that node."""

    def __init__(self, processors: Sequence[LogitsProcessor], prompt: Sequence[int]):
        self._processors = tuple(processors)
        self._committed = mx.array(list(prompt), mx.int32)

    def commit(self, tokens: Sequence[int] | mx.array) -> None:
        new = tokens if isinstance(tokens, mx.array) else mx.array(list(tokens))
        self._committed = mx.concatenate([self._committed, new])

    def root(self, logits: mx.array) -> mx.array:
        return self._applied(self._committed, logits)

    def __call__(self, tree: DraftTree, kept: mx.array | None, logits: mx.array) -> mx.array:
        logits = rows_of_all(logits, kept, len(tree))
        processed = [self.root(logits[:1])]
        reset = _is_draft.set(True)
        try:
            for node in range(1, len(tree)):
                drafted = mx.array(tree.tokens[tree.path(node)[1:]])
                tokens = mx.concatenate([self._committed, drafted])
                processed.append(self._applied(tokens, logits[node : node + 1]))
        finally:
            _is_draft.reset(reset)
        logits = mx.concatenate(processed)
        return logits if kept is None else logits[kept]

    def _applied(self, tokens: mx.array, logits: mx.array) -> mx.array:
        shape = logits.shape
        for processor in self._processors:
            logits = processor(tokens, logits)
            if not isinstance(logits, mx.array) or logits.shape != shape:
                returned = logits.shape if isinstance(logits, mx.array) else shown(logits)
                raise UserError(
                    f"a logits processor returned {returned}, "
                    f"expected an array of the shape {shape}"
                )
        return logits
