"""Training items, a prompt with its completion as token ids, and their order, for both trainers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

_WINDOW = 50  # batches whose items are sorted by length together: little padding, random order
_REPLAY_EVERY = 10
"""Of the positions at which no draft begins in a replay, every so many-th has streams, too."""


@dataclass(frozen=True)
class Item:
    """A prompt with its completion and the end token, tokenized, and where the prompt is from."""

    tokens: Sequence[int]
    stream_from: int  # index of the completion's first token, at least 1
    source: str = ""
    drawn: Sequence[int] | None = None  # the positions with streams, where these are not all

    @property
    def positions(self) -> Sequence[int]:
        """The positions with streams, ascending: by default from the last prompt token on."""
        return (
            range(self.stream_from - 1, len(self.tokens) - 1) if self.drawn is None else self.drawn
        )

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


def step_starts(hits: np.ndarray) -> list[int]:
    """Replay a chain draft: where its steps begin, by hits (positions, gamma) of its streams.

    Each begins at the token that ended the draft before.
    """
    in_a_row = np.cumprod(hits, axis=1).sum(1) if len(hits) else []
    place, found = 0, list[int]()
    while place < len(hits):
        found.append(place)
        place += 1 + int(in_a_row[place])
    return found


def replayed(item: Item, hits: np.ndarray) -> Item:
    """An item with streams where drafts begin, by hits (positions, gamma), and at a few others."""
    starts = step_starts(hits[: item.completion_tokens - 1])  # the first token is the prompt's
    wanted = {*starts, *range(0, item.completion_tokens, _REPLAY_EVERY)}
    return replace(item, drawn=[item.positions[place] for place in sorted(wanted)])


def most_frequent(items: Iterable[Item], count: int, vocab_size: int) -> list[int]:
    """Find the ``count`` tokens most frequent in completions, then in all text; ascending."""
    in_completions, anywhere = Counter[int](), Counter[int]()
    for item in items:
        anywhere.update(item.tokens)
        in_completions.update(item.tokens[item.stream_from :])
    order = sorted(range(vocab_size), key=lambda t: (-in_completions[t], -anywhere[t], t))
    return sorted(order[:count])
