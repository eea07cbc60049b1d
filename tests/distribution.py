"""Chi-square tests of the joint distribution of the first tokens, many texts at a time.

A model of a tiny vocabulary is a table: logits for every text. All texts that are at the same
prefix are advanced in one batch, so a million draws cost no more than the prefixes there are.
"""

import itertools
import math
from collections import Counter
from functools import cache

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_logits_processors

LENGTH = 4
"""Tokens of which the joint distribution is tested; the first never passes through a tree."""
ALPHA = 1e-4
CERTAIN = 1e-8
"""A planted wrong rule must be less likely than this."""


class Table:
    """A target, its streams and its early exit, all functions of the text."""

    def __init__(self, vocab_size=4, num_streams=2, spread=1.2, seed=0):
        self.vocab_size, self.num_streams = vocab_size, num_streams
        self.spread, self.seed = spread, seed

    def _normal(self, kind, text, shape):
        rng = np.random.default_rng([self.seed, kind, len(text), *text])
        return rng.normal(0, self.spread, shape).astype(np.float32)

    def logits(self, text):
        return self._normal(0, text, self.vocab_size)

    def stream_logits(self, text):
        """(gamma, vocab); related to the target's at the next token, and to nothing behind it."""
        logits = self._normal(1, text, (self.num_streams, self.vocab_size))
        logits[0] = 0.5 * logits[0] + 0.5 * self.logits(text)
        return logits

    def early_exit_logits(self, text):
        """(vocab,) the target's, blurred."""
        return self.logits(text) + 0.5 * self._normal(2, text, self.vocab_size)


PROMPT = (1, 0, 2)


def plain(table, sampler, processors):
    """Text -> log-probabilities under plain decoding, one text and one token at a time."""
    processors = make_logits_processors(**processors)

    @cache
    def log_probs_after(text):
        logits = mx.array(table.logits(text))[None]
        for processor in processors:
            logits = processor(mx.array([*PROMPT, *text]), logits)
        return np.array(sampler.log_probs(logits))[0].astype(np.float64)

    return log_probs_after


def joint(log_probs_after, vocab_size, length=LENGTH):
    """The exact joint distribution; ``log_probs_after`` a text are (vocab,) of its next token."""
    probabilities = {}
    for text in itertools.product(range(vocab_size), repeat=length):
        values = [log_probs_after(text[:index])[token] for index, token in enumerate(text)]
        probabilities[text] = math.exp(sum(values))
    return probabilities


def simulate(step, draws):
    """Counts of the first ``LENGTH`` tokens of many texts.

    ``step``: (text, number of texts that are there) -> the tokens that they go on with: (number, m)
    int, padded with -1.
    """
    waiting, done = {(): draws}, Counter()
    while waiting:
        text = min(waiting, key=len)  # the shortest, so that all that come by it are there
        going_on, numbers = np.unique(step(text, waiting.pop(text)), axis=0, return_counts=True)
        for more, number in zip(going_on.tolist(), numbers.tolist(), strict=True):
            longer = (*text, *(token for token in more if token >= 0))[:LENGTH]
            if len(longer) == LENGTH:
                done[longer] += number
            else:
                waiting[longer] = waiting.get(longer, 0) + number
    return done


def p_value(counts, probabilities):
    """Of Pearson's chi-square; cells with an expected count below 5 are put together.

    A text that cannot be, but was seen, has probability 0.
    """
    draws = sum(counts.values())
    if any(probabilities[text] == 0 for text in counts):
        return 0.0
    cells, few = [], np.zeros(2)
    for text, probability in probabilities.items():
        cell = np.array([counts.get(text, 0), draws * probability])
        if cell[1] >= 5:
            cells.append(cell)
        else:
            few += cell
    if few[1] >= 5:
        cells.append(few)
    elif cells:
        cells[-1] = cells[-1] + few
    seen, expected = np.array(cells).T
    assert len(cells) >= 10, "a test of something"
    return tail(((seen - expected) ** 2 / expected).sum(), len(cells) - 1)


def tail(statistic, freedom):
    """P(chi-square with ``freedom`` degrees > statistic), by Wilson and Hilferty (1931)."""
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


def rows(values, count):
    """(n, ...) -> (count * n, ...), the n again and again."""
    return mx.array(np.tile(np.asarray(values), (count,) + (1,) * (np.ndim(values) - 1)))
