"""The server's other ranks: what rank 0's worker does with texts, they do too.

Clients talk to rank 0 alone. Its worker tells every act that reaches the device; what is written
and where it ends, rank 0 reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..distributed.ranks import Ranks
from ..hardware import device
from ..loading import SpeculativeModel
from ..loop import Steps, Text, Together
from .decoding import Asked, Writing
from .prefixes import Prefixes
from .resident import BASE


@dataclass(frozen=True, eq=False)
class _Batch:
    """Texts in one pass, see ``decoding.Batch``."""

    together: Together
    steps: Iterator[Steps]


class Follower:
    """Texts of another rank, by the numbers that rank 0 gives them.

    Args:
        ranks: all ranks.
        models: from ``resident``.
        tokenizer: of the base.
        kept_tokens: see ``Worker``; as on rank 0.
    """

    def __init__(
        self,
        ranks: Ranks,
        models: Mapping[str, SpeculativeModel],
        tokenizer: TokenizerWrapper,
        kept_tokens: int,
    ):
        self._ranks, self._models, self._tokenizer = ranks, models, tokenizer
        self._prefixes = Prefixes(kept_tokens)
        self._writings: dict[int, tuple[Writing, Iterator[Any]]] = {}
        self._batches: dict[int, _Batch] = {}
        self._texts: dict[int, tuple[_Batch, Text]] = {}

    def run(self) -> None:
        """Do as rank 0 says until it stops."""
        with device.wired(self._models[BASE].model):
            while (act := self._ranks.told("work")) is not None:
                verb, *arguments = act
                getattr(self, f"_{verb}")(*arguments)

    def _begin(self, number: int, name: str, prompt: list[int], max_tokens: int) -> None:
        asked = Asked(name, self._models[name], prompt, max_tokens)
        writing = Writing(asked, self._tokenizer, self._prefixes, lambda: False)
        self._writings[number] = writing, writing.read()

    def _read(self, number: int) -> None:
        next(self._writings[number][1], None)

    def _join(self, number: int, batch_number: int) -> None:
        writing, _ = self._writings[number]
        if batch_number not in self._batches:
            together = Together(writing.asked.model)
            self._batches[batch_number] = _Batch(together, together.steps())
        batch = self._batches[batch_number]
        request = writing.asked.request(self._tokenizer.eos_token_ids)
        request = replace(request, prompt_cache=writing.cache)
        self._texts[number] = batch, batch.together.join(request, writing.asked.model)

    def _step(self, batch_number: int) -> None:
        next(self._batches[batch_number].steps)

    def _leave(self, number: int) -> None:
        batch, text = self._texts.pop(number)
        if not text.ended:
            batch.together.leave(text)

    def _keep(self, number: int) -> None:
        self._writings[number][0].keep()

    def _end(self, number: int) -> None:
        del self._writings[number]

    def _close(self, batch_number: int) -> None:
        batch = self._batches.pop(batch_number, None)
        if batch is not None:
            batch.steps.close()  # type: ignore[attr-defined]
