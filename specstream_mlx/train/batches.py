"""Training items, a prompt with its completion as token ids, and their order, for both trainers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_WINDOW = 50  # batches whose items are sorted by length together: little padding, random order


@dataclass(frozen=True)
class Item:
    """A prompt with its completion and the end token, tokenized, and where the prompt is from."""

    tokens: Sequence[int]
    stream_from: int  # index of the completion's first token, at least 1
    source: str = ""

    @property
    def completion_tokens(self) -> int:
        """Number of tokens of the completion, its end token included."""
        return len(self.tokens) - self.stream_from


class Batches:
    """Batches of sequences of similar lengths, a pure function of the seed and their number."""

    def __init__(self, items: Sequence[Item], batch_size: int, seed: int):
        self._items, self._size, self._seed = items, batch_size, seed

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return -(-len(self._items) // self._size)

    def from_step(self, step: int) -> Iterator[list[Item]]:
        """Yield the batches from the ``step``-th on, counted from 0, without end."""
        epoch, skipped = divmod(step, len(self))
        while True:
            yield from self.epoch(epoch)[skipped:]
            epoch, skipped = epoch + 1, 0

    def epoch(self, number: int) -> list[list[Item]]:
        """Make all batches of an epoch; each epoch has others."""
        generator = np.random.default_rng((self._seed, number))
        drawn = [self._items[place] for place in generator.permutation(len(self._items))]
        groups, size = [], self._size
        for start in range(0, len(drawn), _WINDOW * size):
            window = drawn[start : start + _WINDOW * size]
            window.sort(key=lambda item: (len(item.tokens) // 32, item.completion_tokens))
            groups += [window[i : i + size] for i in range(0, len(window), size)]
        return [groups[place] for place in generator.permutation(len(groups))]


def most_frequent(items: Iterable[Item], count: int, vocab_size: int) -> list[int]:
    """Find the ``count`` tokens most frequent in completions, then in all text; ascending."""
    in_completions, anywhere = Counter[int](), Counter[int]()
    for item in items:
        anywhere.update(item.tokens)
        in_completions.update(item.tokens[item.stream_from :])
    order = sorted(range(vocab_size), key=lambda t: (-in_completions[t], -anywhere[t], t))
    return sorted(order[:count])
