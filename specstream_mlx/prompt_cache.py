"""KV caches that outlive a generation, so that the next prompt reads only what is new in it."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import QuantizedKVCache

from .config import UserError
from .engine.kv import make_caches
from .engine.kv_quantization import KVQuantization
from .loading import SpeculativeModel


class PromptCache:
    """The rows of earlier turns; give the same one to every turn of a conversation.

    It belongs to one model and to the LoRA that is mounted on it: with another one its rows are
    dropped. Rows are used again only where they are those that reading the prompt from the
    beginning would make: all rows of a prompt but the last one's, and in lossless mode those of the
    generated text too. In shared mode these had streams beside them, and are read again without.
    Behind a quantized cache later rows are those that its quantized rows led to, as with mlx_lm's
    prompt caches; from the beginning, a chunk is read in full precision first.

    Attributes:
        caches: one per layer; there may be more rows in them than are to be used again.
        unknown_rows: rows at the front whose tokens nobody knows, from a file of mlx_lm's. Every
            prompt goes behind them.
        tokens: ids of the rows behind these that may be used again.
        reused: tokens of the last prompt that were not read again.
    """

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.unknown_rows = 0
        self.tokens: list[int] = []
        self.reused = 0
        self._owner: tuple[Any, Any] | None = None
        self._generation = 0

    @classmethod
    def of(
        cls,
        model: SpeculativeModel,
        caches: Sequence[Any],
        tokens: Sequence[int],
        unknown_rows: int = 0,
    ) -> "PromptCache":
        """A cache of rows that ``model`` made without streams beside them."""
        cache = cls()
        cache.caches, cache.tokens = list(caches), list(tokens)
        cache.unknown_rows, cache._owner = unknown_rows, _owner(model)
        return cache

    @property
    def rows(self) -> int:
        """Rows of every layer that may be used again."""
        return self.unknown_rows + len(self.tokens)

    @property
    def quantized(self) -> tuple[int, int] | None:
        """Bits and group size of quantized rows; ``None``: they are floats."""
        kinds = {(c.bits, c.group_size) for c in self.caches if isinstance(c, QuantizedKVCache)}
        return next(iter(kinds), None)

    def begin(
        self, model: SpeculativeModel, prompt: Sequence[int], quantization: KVQuantization
    ) -> int:
        """Drop all rows but those of the beginning of ``prompt``, without its last token.

        Args:
            model: base and adapter.
            prompt: token ids behind the ``unknown_rows``, at least one.
            quantization: of the generation that begins.

        Returns:
            The generation's number, for ``extend`` and ``check_current``.

        Raises:
            UserError: there are ``unknown_rows``, which these rows of another model, adapter or
                quantization cannot be replaced for.
        """
        other = self._other(model, quantization)
        if other and self.unknown_rows:
            raise UserError(f"the prompt cache was made with {other}, expected the same")
        common = 0 if other else self._common(prompt)
        if common and self._too_early(common, quantization):
            common = 0
        self.tokens = self.tokens[:common]
        self.reused = len(self.tokens)
        if self.rows:
            for cache in self.caches:
                cache.trim(cache.offset - self.rows)
        else:
            self.caches = make_caches(model.model, model.config)
        self._owner = _owner(model)
        self._generation += 1
        return self._generation

    def _other(self, model: SpeculativeModel, quantization: KVQuantization) -> str | None:
        """What the rows were made with instead of this."""
        if self._owner is None:
            return None
        base, adapter = _owner(model)
        if base is not self._owner[0]:
            return "another model"
        if adapter is not self._owner[1]:
            return "another adapter"
        if self.quantized not in (None, (quantization.bits, quantization.group_size)):
            bits, group_size = self.quantized
            return f"kv_bits of {bits} and a kv_group_size of {group_size}"
        return None

    def _too_early(self, common: int, quantization: KVQuantization) -> bool:
        """Whether rows are quantized that reading the prompt anew would leave as they are."""
        return self.quantized is not None and self.unknown_rows + common < quantization.start

    def _common(self, prompt: Sequence[int]) -> int:
        """How many of the rows are those of ``prompt``, its last token's row not counted."""
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        differs = (number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
        return next(differs, min(len(self.tokens), len(prompt) - 1))

    def extend(self, generation: int, tokens: Sequence[int]) -> None:
        """Note that the rows of further tokens lie behind those of ``tokens``."""
        self.check_current(generation)
        self.tokens += tokens

    def check_current(self, generation: int) -> None:
        """Whether no later generation has begun.

        Raises:
            UserError: one has, and the caches are its.
        """
        if generation != self._generation:
            raise UserError(
                "the prompt cache is in use by a later generation, expected one at a time"
            )


def _owner(model: SpeculativeModel) -> tuple[Any, Any]:
    """What prompt rows depend on: streams do not touch them, LoRA does."""
    return model.model, model.adapter if model.adapter and model.adapter.lora else None
