"""Prompts that were read before: a prompt that begins as one of them is not read from the start."""

from collections.abc import Sequence
from copy import deepcopy

import mlx.nn as nn
import numpy as np

from ..kv_store import PromptCache

_LEAST = 8  # tokens; copying the rows of fewer is not worth it


class PromptCaches:
    """KV rows of the prompts and texts read last: ``stored`` has model, tokens and rows of each."""

    def __init__(self, most_tokens: int):
        self._most = most_tokens
        self.stored: list[tuple[nn.Module, np.ndarray, PromptCache]] = []

    @property
    def tokens(self) -> int:
        """Tokens whose rows are stored."""
        return sum(len(tokens) for _, tokens, _ in self.stored)

    def cache_for(self, model: nn.Module, prompt: Sequence[int]) -> PromptCache:
        """Make a cache of the prompt's own, with the rows of as many of its tokens as there are."""
        new = np.array(prompt)
        sizes = [_common(tokens, new) if m is model else 0 for m, tokens, _ in self.stored]
        if max(sizes, default=0) < _LEAST:
            return PromptCache()
        self.stored.append(self.stored.pop(int(np.argmax(sizes))))
        return deepcopy(self.stored[-1][2])

    def store(self, model: nn.Module, cache: PromptCache) -> None:
        """Store a copy of a cache's rows instead of those that it holds too."""
        new = np.array(cache.tokens)
        if not _LEAST <= len(new) <= self._most:
            return
        shared = [_common(tokens, new) if m is model else -1 for m, tokens, _ in self.stored]
        if len(new) in shared:
            return
        others = zip(self.stored, shared, strict=True)
        self.stored = [one for one, common in others if common < len(one[1])]
        # Buffers have room for hundreds of rows more than a short text needs.
        self.stored.append((model, new, cache.without_spare_rows()))
        while self.tokens > self._most:
            del self.stored[0]


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Count the tokens that two texts begin with alike."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size
