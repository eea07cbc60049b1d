"""Prompts that were read before: a prompt that begins as one of them is not read from the start."""

from collections.abc import Sequence
from copy import deepcopy

import mlx.nn as nn
import numpy as np

from ..kv_store import PromptCache

_LEAST = 8  # tokens; copying the rows of fewer is not worth it


class Prefixes:
    """KV rows of the prompts and texts that were read last."""

    def __init__(self, most_tokens: int):
        self._most = most_tokens
        self._kept: list[tuple[nn.Module, np.ndarray, PromptCache]] = []  # used last comes last

    @property
    def tokens(self) -> int:
        """Tokens whose rows are kept."""
        return sum(len(tokens) for _, tokens, _ in self._kept)

    def cache_for(self, model: nn.Module, prompt: Sequence[int]) -> PromptCache:
        """A cache of the prompt's own, with the rows of as many of its tokens as are kept."""
        asked = np.array(prompt)
        sizes = [_common(tokens, asked) if m is model else 0 for m, tokens, _ in self._kept]
        if max(sizes, default=0) < _LEAST:
            return PromptCache()
        self._kept.append(self._kept.pop(int(np.argmax(sizes))))
        return deepcopy(self._kept[-1][2])

    def keep(self, model: nn.Module, cache: PromptCache) -> None:
        """Keep a copy of a cache's rows instead of those that it holds too.

        Buffers have room for hundreds of rows more than a short text needs, so these are not kept.
        """
        tokens = np.array(cache.tokens)
        if not _LEAST <= len(tokens) <= self._most:
            return
        for number in range(len(self._kept) - 1, -1, -1):
            other, old, _ = self._kept[number]
            common = _common(old, tokens) if other is model else 0
            if common == len(tokens):
                return
            if common == len(old):
                del self._kept[number]
        self._kept.append((model, tokens, cache.without_spare_rows()))
        while self.tokens > self._most:
            del self._kept[0]


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Number of tokens that two texts begin with alike."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size
