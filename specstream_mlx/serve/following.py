"""The server's other ranks: what rank 0's worker does with texts, they do too.

Clients talk to rank 0 alone. Its worker tells every act that reaches the device; what is written
and where it ends, rank 0 reads.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..hardware import device
from ..loading import SpeculativeModel
from .decoding import Asked, Batch, Writing
from .prefixes import Prefixes
from .resident import BASE


class Follower:
    """Texts and batches of another rank, by the numbers that rank 0 gives them."""

    def __init__(
        self,
        models: Mapping[str, SpeculativeModel],
        tokenizer: TokenizerWrapper,
        kept_tokens: int,
    ):
        self._models, self._tokenizer = models, tokenizer
        self._prefixes = Prefixes(kept_tokens)
        self._writings: dict[int, tuple[Writing, Iterator[Any]]] = {}
        self._batches: dict[int, Batch] = {}

    def run(self) -> None:
        """Do as rank 0 says until it stops."""
        base = self._models[BASE]
        assert base.ranks is not None
        with device.wired(base.model):
            while (act := base.ranks.told("work")) is not None:
                verb, *arguments = act
                getattr(self, f"_{verb}")(*arguments)

    def _begin(self, number: int, name: str, prompt: list[int], max_tokens: int) -> None:
        asked = Asked(name, self._models[name], prompt, max_tokens)
        writing = Writing(asked, self._tokenizer, self._prefixes, lambda: False)
        self._writings[number] = writing, writing.read()

    def _read(self, number: int) -> None:
        next(self._writings[number][1], None)

    def _join(self, number: int, batch: int) -> None:
        writing, _ = self._writings[number]
        self._batches.setdefault(batch, Batch(writing.asked.model)).join(writing)

    def _step(self, batch: int) -> None:
        next(self._batches[batch].steps)

    def _leave(self, number: int) -> None:
        writing, _ = self._writings[number]
        next(batch for batch in self._batches.values() if writing in batch.texts).leave(writing)

    def _keep(self, number: int) -> None:
        self._writings[number][0].keep()

    def _end(self, number: int) -> None:
        del self._writings[number]

    def _close(self, batch: int) -> None:
        if batch in self._batches:
            self._batches.pop(batch).close()
