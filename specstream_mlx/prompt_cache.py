"""Prompt caches: KV rows kept from one turn to the next, so that only new tokens are read."""

from collections.abc import Sequence
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import QuantizedKVCache, RotatingKVCache

from .engine.kv import KVQuantization, as_ours, check_goes_back, check_heads, make_caches
from .errors import UserError, shown
from .loading import SpeculativeModel
from .models.architectures import layer_windows
from .prompt_cache_files import StoredRows, read, write


class PromptCache:
    """KV rows of earlier turns; give the same object to every turn of a conversation.

    The rows belong to one model and the LoRA mounted on it; with another model or LoRA they are
    dropped. A row is used again only if reading the prompt from the beginning would make the same
    row. That holds for a prompt's rows except the last, and in lossless mode for the rows of the
    generated text. In shared mode streams ran beside generated tokens, so those are read again.
    With a quantized KV cache, as in mlx_lm's prompt caches, new rows attend to quantized earlier
    rows, whereas reading from the beginning takes a whole chunk in full precision first.

    Attributes:
        caches: one KV cache per layer; they may hold more rows than can be used again.
        unknown_rows: number of rows at the front from a file of mlx_lm's, which does not name their
            tokens. Every prompt goes behind them.
        tokens: token ids of the reusable rows behind the unknown ones.
        reused: number of tokens of the last prompt that were not read again.
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
        """Make a prompt cache of KV caches that ``model`` has filled without running streams."""
        cache = cls()
        cache.caches, cache.tokens = list(caches), list(tokens)
        cache.unknown_rows, cache._owner = unknown_rows, _owner(model)
        return cache

    @classmethod
    def of_list(cls, model: SpeculativeModel, caches: list[Any]) -> "PromptCache":
        """Make a prompt cache of mlx_lm's, a list from ``make_prompt_cache(model)``.

        Every prompt goes behind the list's rows. The list is not changed before ``into_list``.

        Raises:
            UserError: it is no such list, or one of its caches cannot drop rejected drafts.
        """
        windows = layer_windows(model.config, model.model)
        if not isinstance(caches, list) or len(caches) != len(windows):
            raise UserError(
                f"prompt_cache is {shown(caches)}, expected a PromptCache, or what mlx_lm's "
                f"make_prompt_cache makes, a list of one cache for each of {len(windows)} layers"
            )
        pairs = list(zip(caches, windows, strict=True))
        for number, (cache, window) in enumerate(pairs):
            check_goes_back(f"layer {number} of prompt_cache", cache, window)
        own = [as_ours(cache, window) for cache, window in pairs]
        rows = {cache.offset for cache in own}
        if len(rows) > 1:
            raise UserError(
                f"the layers of prompt_cache hold {sorted(rows)} rows, expected the same number"
            )
        if any(rows):
            check_heads(model.model, model.config, own)
        return cls.of(model, own, [], rows.pop())

    @classmethod
    def load(
        cls, path: str | Path, model: SpeculativeModel, model_name: str | None = None
    ) -> "PromptCache":
        """Read a prompt cache that ``save`` or mlx_lm wrote, see ``prompt_cache_files.read``.

        Raises:
            UserError: the file cannot be gone on from by this model.
        """
        rows = read(Path(path), model, model_name)
        return cls.of(model, rows.caches, rows.tokens, rows.unknown_rows)

    def save(
        self,
        path: str | Path,
        model: SpeculativeModel,
        model_name: str | None = None,
        tokenizer_config: dict[str, Any] | None = None,
    ) -> None:
        """Write the rows to a file of mlx_lm's format, see ``prompt_cache_files.write``.

        Raises:
            UserError: the cache is empty or another model's, or the file cannot be written.
        """
        if other := self._other_model(model):
            raise UserError(f"the prompt cache was made with {other}, expected the same")
        rows = StoredRows(self.caches, self.tokens, self.unknown_rows)
        write(Path(path), rows, model, model_name, tokenizer_config)

    def into_list(self, caches: list[Any]) -> None:
        """Put the rows into the list of mlx_lm's caches that ``of_list`` was given."""
        for number, layer in enumerate(self.caches):
            cache = caches[number]
            if isinstance(layer, QuantizedKVCache) and not isinstance(cache, QuantizedKVCache):
                cache = caches[number] = QuantizedKVCache(layer.group_size, layer.bits)
            if isinstance(cache, RotatingKVCache):  # as after one pass over all rows
                keys, values = (rows[..., : self.rows, :] for rows in (layer.keys, layer.values))
                cache.state = keys, values, self.rows, cache.keep, cache.max_size, self.rows
            else:
                cache.keys, cache.values, cache.offset = layer.keys, layer.values, self.rows

    def __deepcopy__(self, memo: dict[int, Any]) -> "PromptCache":
        """Copy the rows, to branch a conversation; model and adapter stay the same objects."""
        return self._with(deepcopy(self.caches, memo))

    def without_spare_rows(self) -> "PromptCache":
        """Copy the rows that may be used again, without what the buffers have room for besides."""
        caches = [copy(layer) for layer in self.caches]
        cut = partial(_cut, rows=self.rows)
        for layer in caches:
            layer.keys, layer.values = tree_map(cut, (layer.keys, layer.values))
            layer.offset = self.rows
        mx.eval([(layer.keys, layer.values) for layer in caches])  # or they hold the buffers
        return self._with(caches)

    def _with(self, caches: list[Any]) -> "PromptCache":
        """A copy of all but the KV caches, with these in their place."""
        copied = PromptCache()
        copied.caches, copied.tokens = caches, list(self.tokens)
        copied.unknown_rows, copied.reused = self.unknown_rows, self.reused
        copied._owner = self._owner
        return copied

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        kind = ""
        if self.quantized is not None:
            kind = ", {} bits in groups of {}".format(*self.quantized)
        return f"PromptCache({self.rows} rows of {len(self.caches)} layers{kind})"

    @property
    def rows(self) -> int:
        """Number of rows of each layer that may be used again."""
        return self.unknown_rows + len(self.tokens)

    @property
    def quantized(self) -> tuple[int, int] | None:
        """Bits and group size of the rows if they are quantized, else ``None``."""
        kinds = {(c.bits, c.group_size) for c in self.caches if isinstance(c, QuantizedKVCache)}
        return next(iter(kinds), None)

    def begin(
        self, model: SpeculativeModel, prompt: Sequence[int], quantization: KVQuantization
    ) -> int:
        """Begin a generation: keep the rows that ``prompt`` can use again and drop all others.

        The last token's row is never kept, since its logits are needed.

        Args:
            model: base and adapter.
            prompt: token ids behind the ``unknown_rows``, at least one.
            quantization: the new generation's settings of its KV cache.

        Returns:
            The generation's number, for ``extend`` and ``check_current``.

        Raises:
            UserError: the cache was made with another model, adapter or quantization, and holds
                ``unknown_rows``, which cannot be read again.
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

    def _other_model(self, model: SpeculativeModel) -> str | None:
        """Name the maker of the rows, if it was not ``model``, else return ``None``."""
        if self._owner is None:
            return None
        base, adapter = _owner(model)
        if base is not self._owner[0]:
            return "another model"
        return None if adapter is self._owner[1] else "another adapter"

    def _other(self, model: SpeculativeModel, quantization: KVQuantization) -> str | None:
        """Name a difference between the rows' maker and these; ``None``: there is none."""
        if other := self._other_model(model):
            return other
        if self.quantized not in (None, (quantization.bits, quantization.group_size)):
            bits, group_size = self.quantized
            return f"kv_bits of {bits} and a kv_group_size of {group_size}"
        return None

    def _too_early(self, common: int, quantization: KVQuantization) -> bool:
        """Tell whether the rows are quantized although a prompt of this length would not be yet."""
        return self.quantized is not None and self.unknown_rows + common < quantization.start

    def _common(self, prompt: Sequence[int]) -> int:
        """Count the first tokens that cache and ``prompt`` share, without the prompt's last."""
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        differs = (number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
        return next(differs, min(len(self.tokens), len(prompt) - 1))

    def extend(self, generation: int, tokens: Sequence[int]) -> None:
        """Record that the caches now also hold the rows of these tokens."""
        self.check_current(generation)
        self.tokens += tokens

    def check_current(self, generation: int) -> None:
        """Check that no later generation has taken the cache over.

        Raises:
            UserError: one has.
        """
        if generation != self._generation:
            raise UserError(
                "the prompt cache is in use by a later generation, expected one at a time"
            )


def _cut(buffer: mx.array, rows: int) -> mx.array:
    return mx.contiguous(buffer[..., :rows, :])


def _owner(model: SpeculativeModel) -> tuple[Any, Any]:
    """Return the owner of prompt rows: the base, and the adapter if it has LoRA."""
    return model.base, model.adapter if model.adapter and model.adapter.lora else None
